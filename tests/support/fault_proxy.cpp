// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fault_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/core/status.h"

namespace sluice::test {
namespace {

using Clock = std::chrono::steady_clock;

sockaddr_in loopback(uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

uint16_t port_of(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

}  // namespace

struct FaultProxy::Direction {
  int from = -1;
  int to = -1;
  Fault fault;  // kNone: only the other direction has one, or it is done
  uint64_t passed = 0;
  bool is_answer = false;
  std::vector<std::byte> buffer;
  size_t begin = 0;
  size_t end = 0;
  Clock::time_point stalled_until;
  bool is_over = false;  // no more is read from there
  bool is_told = false;  // the other side knows of the end

  [[nodiscard]] bool is_stalled() const { return Clock::now() < stalled_until; }
};

struct FaultProxy::Pair {
  size_t number = 0;
  Direction request;
  Direction answer;
  bool is_open = true;
};

FaultProxy::FaultProxy(std::string target, std::function<Fault(size_t)> plan, Edit edit)
    : target_(std::move(target)), plan_(std::move(plan)), edit_(std::move(edit)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in at = loopback(0);
  socklen_t size = sizeof(at);
  CHECK_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&at), size), 0);
  CHECK_EQ(listen(listener_, 64), 0);
  CHECK_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size), 0);
  address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  thread_ = std::thread([this] { run(); });
}

FaultProxy::~FaultProxy() {
  stop_ = true;
  thread_.join();
  for (const auto& pair : pairs_) cut(*pair);
  close(listener_);
}

void FaultProxy::cut(Pair& pair) {
  if (!std::exchange(pair.is_open, false)) return;
  for (const int fd : {pair.request.from, pair.request.to}) {
    const linger reset{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(fd);
  }
}

void FaultProxy::accept_one() {
  const int from = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (from < 0) return;
  const int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in at = loopback(port_of(target_));
  const size_t number = num_connections_++;
  if (connect(to, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) {
    close(from);
    close(to);
    return;
  }
  const int on = 1;
  setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  auto pair = std::make_unique<Pair>();
  pair->number = number;
  pair->answer.is_answer = true;
  pair->request.from = pair->answer.to = from;
  pair->request.to = pair->answer.from = to;
  const Fault fault = plan_(number);
  (fault.is_answer ? pair->answer : pair->request).fault = fault;
  pairs_.push_back(std::move(pair));
}

void FaultProxy::read(Pair& pair, Direction& way) {
  constexpr size_t kMost = 65536;
  way.buffer.resize(kMost);
  const ssize_t got = recv(way.from, way.buffer.data(), way.buffer.size(), MSG_DONTWAIT);
  if (got < 0 && errno != EAGAIN) return cut(pair);
  way.is_over = got == 0;
  way.buffer.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (edit_ && !way.buffer.empty()) edit_(pair.number, way.is_answer, way.buffer);
  way.begin = 0;
  way.end = way.buffer.size();
}

void FaultProxy::move_bytes(Pair& pair, Direction& way) {
  if (way.is_stalled()) return;
  if (way.begin == way.end && !way.is_over) read(pair, way);
  if (!pair.is_open) return;
  // Bytes that pass before the fault.
  const bool is_near =
      way.fault.kind != Fault::Kind::kNone && way.fault.at < way.passed + (way.end - way.begin);
  size_t count = way.end - way.begin;
  if (is_near) count = static_cast<size_t>(way.fault.at - way.passed);
  if (is_near && count == 0) {
    const Fault fault = std::exchange(way.fault, {});
    if (fault.kind == Fault::Kind::kCut) return cut(pair);
    if (fault.kind == Fault::Kind::kFlip) way.buffer[way.begin] ^= std::byte{0x10};
    if (fault.kind == Fault::Kind::kHalfClose) {
      way.begin = way.end;
      way.is_over = true;
    }
    if (fault.kind == Fault::Kind::kStall) {
      way.stalled_until = Clock::now() + (fault.ms == 0 ? std::chrono::hours(1)
                                                        : std::chrono::milliseconds(fault.ms));
    }
    return;
  }
  if (count > 0) {
    const ssize_t put =
        send(way.to, way.buffer.data() + way.begin, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno != EAGAIN) return cut(pair);
    way.begin += static_cast<size_t>(std::max<ssize_t>(put, 0));
    way.passed += static_cast<uint64_t>(std::max<ssize_t>(put, 0));
  }
  if (way.begin == way.end && way.is_over && !std::exchange(way.is_told, true)) {
    shutdown(way.to, SHUT_WR);
  }
}

void FaultProxy::run() {
  std::vector<pollfd> waits;
  while (!stop_) {
    waits.assign(1, {.fd = listener_, .events = POLLIN, .revents = 0});
    for (const auto& pair : pairs_) {
      for (const Direction* way : {&pair->request, &pair->answer}) {
        if (!pair->is_open || way->is_stalled()) continue;
        if (way->begin < way->end) {
          waits.push_back({.fd = way->to, .events = POLLOUT, .revents = 0});
        } else if (!way->is_over) {
          waits.push_back({.fd = way->from, .events = POLLIN, .revents = 0});
        }
      }
    }
    poll(waits.data(), waits.size(), 10);
    accept_one();
    for (const auto& pair : pairs_) {
      if (pair->is_open) move_bytes(*pair, pair->request);
      if (pair->is_open) move_bytes(*pair, pair->answer);
      if (pair->is_open && pair->request.is_told && pair->answer.is_told) cut(*pair);
    }
  }
}

}  // namespace sluice::test
