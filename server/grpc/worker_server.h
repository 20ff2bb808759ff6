// SPDX-License-Identifier: Apache-2.0
// The listener of a worker: sluice.worker.v1 (worker.proto) over the engine, for routers. They send
// validated requests; a peer without the secret, or without a required certificate, is refused. A
// thread of its own takes the engine's outputs to the calls.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/core/status.h"

namespace sluice {

class FrontEnd;

class WorkerServer {
 public:
  // Listens at --worker-listen from here on. kInvalidArgument: an address that other machines
  // reach, and neither --worker-secret nor required client certificates; kUnavailable: it cannot be
  // bound. `joins`: another process of the same service has the port and is about to end (a hot
  // restart).
  static Expected<std::unique_ptr<WorkerServer>> create(FrontEnd& front_end, bool joins);
  // Runs after shutdown() and when num_watched() is 0, or when the engine has stopped.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  [[nodiscard]] uint16_t port() const;  // the bound port

  // Ends all calls with UNAVAILABLE; a router continues their requests elsewhere. Any thread.
  void cut_calls();

  // Accepts nothing new, and returns when no call is left. The service's thread continues.
  void shutdown();

  // Returns the number of requests whose end the engine has not yet reported. Any thread.
  [[nodiscard]] int64_t num_watched() const;

 private:
  struct Impl;
  explicit WorkerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
