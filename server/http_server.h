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
  // Finds what create() would refuse before the weights are read: files and values of knobs and,
  // with `binds`, ports that are in use.
  static Expected<void> check(const Config& config, bool binds);
  // Binds host and port (0: any free port), or a Unix socket. The engine must outlive the server.
  // `inherited`: a listening socket that another process has handed over, or -1.
  static Expected<std::unique_ptr<HttpServer>> create(const Config& config,
                                                      Engine& engine,
                                                      int inherited = -1);
  // Creates a server of probes alone: health, version and metrics, and no port beside HTTP's.
  static Expected<std::unique_ptr<HttpServer>> create_for_probes(const Config& config,
                                                                 Engine& engine);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] uint16_t port() const;         // the one bound; 0: a Unix socket
  [[nodiscard]] uint16_t grpc_port() const;    // the bound port; 0: a Unix socket
  [[nodiscard]] uint16_t worker_port() const;  // for routers; 0: there is none

  // Serves until drained or stopped; called once. On return the engine holds no request of it.
  // kUnavailable: the system has too few threads for it.
  Expected<void> run();

  // Logs what the server has done since its start, under the names of /metrics: what came after the
  // last scrape is found nowhere else. Called after run() and the engine's stop().
  void log_totals() const;

  // Any thread, before or during run(). drain(): accepts nothing new, /health says so, and running
  // answers end or are cut at the drain timeout. stop(): ends everything now.
  void drain();
  void stop();
  // Called before drain(): listening_descriptor() is the socket that another process inherits,
  // hand_over() says that it has. Connections accepted before are still answered, so drain() should
  // come a moment later.
  [[nodiscard]] int listening_descriptor() const;
  void hand_over();
  // Reads certificates and keys again. Any thread.
  void reload();
  // Calls reload() if two calls in a row found the same change in the files of certificates and
  // keys. One thread, a few times a second.
  void reload_changed();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
