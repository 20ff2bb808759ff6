// SPDX-License-Identifier: Apache-2.0
// Listens to the KV events of one worker, on a thread of its own. Memory is bounded: a frame has at
// most kMostKvEventBytes (a longer one closes the connection, which is then reopened), ZeroMQ
// queues at most four whole messages, and no message is taken while kMostPendingKvEventBytes wait
// to be read; the worker's own queue grows instead. A message that does not have three frames, or
// that does not fit in memory, is dropped. A dropped message shows as a gap in the numbers,
// whichever side dropped it. Only a message that never ends has no bound, because ZeroMQ keeps its
// frames until the last one: the worker at the endpoint must be trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace sluice {

inline constexpr size_t kMostKvEventBytes = size_t{8} << 20;
inline constexpr size_t kMostPendingKvEventBytes = size_t{16} << 20;

struct KvEventMessage {
  int64_t number = 0;
  std::vector<uint8_t> payload;
  std::shared_ptr<void> pending;  // its bytes count as pending while this lives
};

class KvEventSubscriber {
 public:
  // `endpoint`: ZeroMQ's, such as tcp://10.0.0.1:5557. `take` gets each message, on that thread; if
  // it throws std::bad_alloc, the message is lost. Throws std::system_error if no thread can start.
  KvEventSubscriber(std::string endpoint, std::function<void(KvEventMessage)> take);
  ~KvEventSubscriber();  // returns when `take` is no longer called
  KvEventSubscriber(const KvEventSubscriber&) = delete;
  KvEventSubscriber& operator=(const KvEventSubscriber&) = delete;

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  class Backlog;

  void run();
  void pass_on(KvEventMessage message);

  const std::string endpoint_;
  const std::function<void(KvEventMessage)> take_;
  const std::shared_ptr<Backlog> backlog_;  // messages may outlive the subscriber
  std::thread thread_;
};

// Returns a worker's bound endpoint for a router: a host of * or 0.0.0.0 becomes the worker's own.
// Empty: not a TCP endpoint.
std::string reachable_endpoint(const std::string& bound, const std::string& worker_host);

}  // namespace sluice
