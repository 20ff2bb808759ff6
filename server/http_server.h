// SPDX-License-Identifier: Apache-2.0
// The front end of an engine: OpenAI's completion APIs, tokenization, health and metrics over HTTP,
// and the gRPC port beside it.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/core/status.h"

namespace sluice {

struct Config;
class Engine;

class HttpServer {
 public:
  // Binds host and port (0: any free one), or a Unix socket. The engine must outlive the server.
  // `inherited`: a listening socket that another process has handed over, or -1.
  static Expected<std::unique_ptr<HttpServer>> create(const Config& config,
                                                      Engine& engine,
                                                      int inherited = -1);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] uint16_t port() const;         // the one bound; 0: a Unix socket
  [[nodiscard]] uint16_t grpc_port() const;    // 0: there is none
  [[nodiscard]] uint16_t worker_port() const;  // for routers; 0: there is none

  // Serves until drained or stopped. Once; when it returns the engine knows no request of ours.
  void run();

  // Any thread, before or during run(). drain(): accepts nothing new, /health says so, running
  // answers end or are cut at the drain timeout. stop(): ends everything now.
  void drain();
  void stop();
  // Before drain(): what another process has to inherit to go on serving; and that it has. What was
  // accepted until then is still answered, so drain() should come a moment later.
  [[nodiscard]] int listening_descriptor() const;
  void hand_over();
  // Any thread: reads certificates and keys again.
  void reload();
  // One thread, a few times a second: reload() where their files have changed since they were read,
  // and the call before has found them so too.
  void reload_changed();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
