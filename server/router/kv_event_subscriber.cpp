// SPDX-License-Identifier: Apache-2.0
#include "server/router/kv_event_subscriber.h"

#include <zmq.h>

#include <memory>
#include <utility>

#include "server/http/socket_name.h"

namespace sluice {
namespace {

constexpr long kPollMs = 100;
constexpr size_t kNumberBytes = 8;
constexpr int kMostWaiting = 100'000;  // messages; more are dropped, which their numbers show

struct CloseSocket {
  void operator()(void* socket) const { zmq_close(socket); }
};

struct EndContext {
  void operator()(void* context) const { zmq_ctx_term(context); }
};

std::vector<std::vector<uint8_t>> receive(void* socket) {
  std::vector<std::vector<uint8_t>> frames;
  int more = 1;
  while (more != 0) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      break;
    }
    const auto* const bytes = static_cast<const uint8_t*>(zmq_msg_data(&message));
    frames.emplace_back(bytes, bytes + zmq_msg_size(&message));
    more = zmq_msg_more(&message);
    zmq_msg_close(&message);
  }
  return frames;
}

}  // namespace

KvEventSubscriber::KvEventSubscriber(std::string endpoint, std::function<void(KvEventMessage)> take)
    : endpoint_(std::move(endpoint)), take_(std::move(take)), thread_([this] { run(); }) {}

KvEventSubscriber::~KvEventSubscriber() {
  is_ending_ = true;
  thread_.join();
}

void KvEventSubscriber::run() {
  const std::unique_ptr<void, EndContext> context(zmq_ctx_new());
  const std::unique_ptr<void, CloseSocket> socket(zmq_socket(context.get(), ZMQ_SUB));
  const int linger = 0;
  zmq_setsockopt(socket.get(), ZMQ_LINGER, &linger, sizeof linger);
  zmq_setsockopt(socket.get(), ZMQ_RCVHWM, &kMostWaiting, sizeof kMostWaiting);
  zmq_setsockopt(socket.get(), ZMQ_SUBSCRIBE, "", 0);
  if (zmq_connect(socket.get(), endpoint_.c_str()) != 0) return;
  while (!is_ending_) {
    zmq_pollitem_t item = {socket.get(), -1, ZMQ_POLLIN, 0};
    if (zmq_poll(&item, 1, kPollMs) <= 0) continue;
    // Frames: topic, number, payload.
    std::vector<std::vector<uint8_t>> frames = receive(socket.get());
    if (frames.size() != 3 || frames[1].size() != kNumberBytes) continue;
    uint64_t number = 0;
    for (const uint8_t byte : frames[1]) number = number << 8 | byte;
    take_({static_cast<int64_t>(number), std::move(frames[2])});
  }
}

std::string reachable_endpoint(const std::string& bound, const std::string& worker_host) {
  constexpr std::string_view kTcp = "tcp://";
  if (!bound.starts_with(kTcp)) return {};
  const auto name = parse_socket_name(std::string_view(bound).substr(kTcp.size()));
  if (!name || name->port == 0) return {};
  return std::string(kTcp) +
         text_of({is_any_host(name->host) ? worker_host : name->host, name->port});
}

}  // namespace sluice
