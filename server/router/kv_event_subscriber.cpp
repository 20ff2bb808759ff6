// SPDX-License-Identifier: Apache-2.0
#include "server/router/kv_event_subscriber.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "engine/core/memory_reserve.h"
#include "server/http/socket_name.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr long kPollMs = 100;
// ZeroMQ connects again 100 to 200 ms after a connection's end, unless that is for a frame beyond
// the limit: then never. A worker that is away for longer is asked anew as well.
constexpr auto kLongestCutOff = std::chrono::seconds(1);
constexpr size_t kNumberBytes = 8;
constexpr size_t kMessageBytes = 512;  // what a message that waits takes beside its payload
// Messages in ZeroMQ's queue. With more on their way the worker's queue grows instead.
constexpr int kMostWaiting = 4;

struct CloseSocket {
  void operator()(void* socket) const { zmq_close(socket); }
};

struct EndContext {
  void operator()(void* context) const { zmq_ctx_term(context); }
};

class Frame {
 public:
  Frame() { zmq_msg_init(&message_); }

  ~Frame() { zmq_msg_close(&message_); }

  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  // Returns false if there is none now.
  bool receive(void* socket) { return zmq_msg_recv(&message_, socket, ZMQ_DONTWAIT) >= 0; }

  [[nodiscard]] bool is_last() const { return zmq_msg_more(&message_) == 0; }

  [[nodiscard]] std::span<const uint8_t> bytes() {
    return {static_cast<const uint8_t*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }

 private:
  zmq_msg_t message_;
};

// False: there is no memory for it now.
bool copy(std::span<const uint8_t> bytes, std::vector<uint8_t>& to) {
  if (!keep_memory_for(bytes.size())) return false;
  try {
    to.assign(bytes.begin(), bytes.end());
  } catch (const std::bad_alloc&) {
    keep_memory_reserves();
    return false;
  }
  return true;
}

// Takes a message of three frames: topic, number, payload. nullopt: it has other frames, or there
// is no memory for it. All frames of a refused message are taken from ZeroMQ, so the next one
// begins with its topic.
std::optional<KvEventMessage> receive(void* socket) {
  KvEventMessage message;
  bool is_whole = true;
  size_t num_frames = 0;
  for (bool is_last = false; !is_last; ++num_frames) {
    Frame frame;
    if (!frame.receive(socket)) return std::nullopt;
    is_last = frame.is_last();
    const std::span<const uint8_t> bytes = frame.bytes();
    if (num_frames == 1) {
      is_whole = bytes.size() == kNumberBytes;
      uint64_t number = 0;
      for (const uint8_t byte : bytes) number = number << 8 | byte;
      message.number = static_cast<int64_t>(number);
    } else if (num_frames == 2 && is_whole && is_last) {
      is_whole = copy(bytes, message.payload);
    }
  }
  if (!is_whole || num_frames != 3) return std::nullopt;
  return message;
}

// A subscription of one ZeroMQ socket, which connects again by itself in most cases.
class Subscription {
 public:
  Subscription(void* context, const std::string& endpoint, int64_t number)
      : socket_(zmq_socket(context, ZMQ_SUB)), changes_(zmq_socket(context, ZMQ_PAIR)) {
    const int linger = 0;
    const int no_limit = 0;
    const auto most_bytes = static_cast<int64_t>(kMostKvEventBytes);
    zmq_setsockopt(socket_.get(), ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket_.get(), ZMQ_RCVHWM, &kMostWaiting, sizeof kMostWaiting);
    zmq_setsockopt(socket_.get(), ZMQ_MAXMSGSIZE, &most_bytes, sizeof most_bytes);
    zmq_setsockopt(socket_.get(), ZMQ_SUBSCRIBE, "", 0);
    // Without room for an event ZeroMQ's thread would wait, and with it the end of the monitor.
    zmq_setsockopt(changes_.get(), ZMQ_RCVHWM, &no_limit, sizeof no_limit);
    const std::string changes = "inproc://changes-" + std::to_string(number);
    constexpr int kChanges = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED;
    has_ended_ = zmq_socket_monitor(socket_.get(), changes.c_str(), kChanges) != 0 ||
                 zmq_connect(changes_.get(), changes.c_str()) != 0 ||
                 zmq_connect(socket_.get(), endpoint.c_str()) != 0;
  }

  // Ends the monitor before its reader: ZeroMQ's thread would wait for it in vain.
  ~Subscription() {
    if (socket_) zmq_socket_monitor(socket_.get(), nullptr, 0);
  }

  Subscription(const Subscription&) = delete;
  Subscription& operator=(const Subscription&) = delete;

  // Its connection has been away for kLongestCutOff, and what came before has been taken.
  [[nodiscard]] bool has_ended() const { return has_ended_; }

  // Waits kPollMs for a message; nullopt: there is none, or it was refused.
  std::optional<KvEventMessage> next() {
    std::array<zmq_pollitem_t, 2> items = {
        {{socket_.get(), -1, ZMQ_POLLIN, 0}, {changes_.get(), -1, ZMQ_POLLIN, 0}}};
    zmq_poll(items.data(), static_cast<int>(items.size()), kPollMs);
    if ((items[1].revents & ZMQ_POLLIN) != 0) note_change();
    if ((items[0].revents & ZMQ_POLLIN) != 0) return receive(socket_.get());
    has_ended_ = is_cut_off_ && Clock::now() - cut_off_since_ >= kLongestCutOff;
    return std::nullopt;
  }

 private:
  // Takes one event of the monitor: a frame that begins with its kind, and one with an address.
  void note_change() {
    Frame event;
    if (!event.receive(changes_.get())) return;
    uint16_t kind = 0;
    std::memcpy(&kind, event.bytes().data(), std::min(event.bytes().size(), sizeof kind));
    for (bool is_last = event.is_last(); !is_last;) {
      Frame address;
      if (!address.receive(changes_.get())) break;
      is_last = address.is_last();
    }
    if (kind == ZMQ_EVENT_CONNECTED) is_cut_off_ = false;
    if (kind == ZMQ_EVENT_DISCONNECTED) {
      is_cut_off_ = true;
      cut_off_since_ = Clock::now();
    }
  }

  std::unique_ptr<void, CloseSocket> socket_;
  std::unique_ptr<void, CloseSocket> changes_;  // CONNECTED and DISCONNECTED
  bool has_ended_ = false;
  bool is_cut_off_ = false;
  Clock::time_point cut_off_since_;
};

}  // namespace

class KvEventSubscriber::Backlog {
 public:
  // Waits until less is pending than may be. False: the subscriber ends.
  bool await_room() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_ending_ || bytes_ < kMostPendingKvEventBytes; });
    return !is_ending_;
  }

  void add(size_t bytes) {
    const std::scoped_lock lock(mutex_);
    bytes_ += bytes;
  }

  void remove(size_t bytes) {
    {
      const std::scoped_lock lock(mutex_);
      bytes_ -= bytes;
    }
    changed_.notify_one();
  }

  void end() {
    {
      const std::scoped_lock lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t bytes_ = 0;        // guarded by mutex_
  bool is_ending_ = false;  // guarded by mutex_
};

KvEventSubscriber::KvEventSubscriber(std::string endpoint, std::function<void(KvEventMessage)> take)
    : endpoint_(std::move(endpoint)),
      take_(std::move(take)),
      backlog_(std::make_shared<Backlog>()),
      thread_([this] { run(); }) {}

KvEventSubscriber::~KvEventSubscriber() {
  backlog_->end();
  thread_.join();
}

void KvEventSubscriber::run() {
  const std::unique_ptr<void, EndContext> context(zmq_ctx_new());
  for (int64_t number = 0; backlog_->await_room(); ++number) {
    Subscription subscription(context.get(), endpoint_, number);
    while (!subscription.has_ended() && backlog_->await_room()) {
      if (auto message = subscription.next()) pass_on(std::move(*message));
    }
    if (subscription.has_ended()) zmq_poll(nullptr, 0, kPollMs);  // not at once again
  }
}

void KvEventSubscriber::pass_on(KvEventMessage message) {
  const size_t bytes = message.payload.size() + kMessageBytes;
  const auto remove = [backlog = backlog_, bytes](void*) { backlog->remove(bytes); };
  try {
    backlog_->add(bytes);
    message.pending = std::shared_ptr<void>(backlog_.get(), remove);
    take_(std::move(message));
  } catch (const std::bad_alloc&) {
    keep_memory_reserves();  // and the next message's number shows that this one is missing
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
