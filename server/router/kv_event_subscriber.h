// SPDX-License-Identifier: Apache-2.0
// Listens to the KV events of one worker, on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace sluice {

struct KvEventMessage {
  int64_t number = 0;
  std::vector<uint8_t> payload;
};

class KvEventSubscriber {
 public:
  // `endpoint`: ZeroMQ's, such as tcp://10.0.0.1:5557. `take` gets each message, on that thread.
  KvEventSubscriber(std::string endpoint, std::function<void(KvEventMessage)> take);
  ~KvEventSubscriber();  // returns when `take` is no longer called
  KvEventSubscriber(const KvEventSubscriber&) = delete;
  KvEventSubscriber& operator=(const KvEventSubscriber&) = delete;

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  void run();

  const std::string endpoint_;
  const std::function<void(KvEventMessage)> take_;
  std::atomic<bool> is_ending_ = false;
  std::thread thread_;
};

// Returns a worker's bound endpoint for a router: a host of * or 0.0.0.0 becomes the worker's own.
// Empty: not a TCP endpoint.
std::string reachable_endpoint(const std::string& bound, const std::string& worker_host);

}  // namespace sluice
