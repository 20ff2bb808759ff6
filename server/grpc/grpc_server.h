// SPDX-License-Identifier: Apache-2.0
// The gRPC port beside the HTTP one: both services, grpc.health.v1 and reflection, over the same
// front end, validator and I/O threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

class FrontEnd;
class IoWorker;

class GrpcServer {
 public:
  // Listens and answers from here on; calls wait until the workers run. All arguments outlive the
  // server; the last worker is that of large messages. `joins`: another process of the same service
  // has the port and is about to end (a hot restart).
  static Expected<std::unique_ptr<GrpcServer>> create(FrontEnd& front_end,
                                                      std::vector<IoWorker*> workers,
                                                      bool joins);
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  [[nodiscard]] uint16_t port() const;  // the bound port

  // Sets the health service's answer to that of /health. One thread at a time.
  void refresh_health();

  // Lets clients open their next connections to another process that has the port, and ends each
  // connection with the last of its calls (HTTP/2's GOAWAY), which go on. Any thread, at once.
  void leave();

  // Accepts nothing new, cuts running calls a little later, and returns when no call is left. The
  // workers must run until then.
  void shutdown();

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
