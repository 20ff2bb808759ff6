// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "engine/core/log.h"
#include "engine/engine.h"
#include "engine/inspect.h"
#include "server/cli/command.h"
#include "server/http_server.h"

namespace sluice {
namespace {

// SIGTERM, SIGINT and SIGHUP as a thread's work instead of a handler's: the signals are blocked in
// every thread and taken here. Before a server is there, a signal ends the process; then the first
// drains and the second stops. SIGHUP lets the server read certificates and keys again.
class SignalWatcher {
 public:
  // Before any other thread starts: they inherit the blocked signals.
  SignalWatcher() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  }

  // The server must be there until this object has gone.
  void set_server(HttpServer& server) { server_ = &server; }

 private:
  void watch(const std::stop_token& stop) {
    bool draining = false;
    while (!stop.stop_requested()) {
      const timespec poll = {0, 200'000'000};
      const int signal = sigtimedwait(&signals_, nullptr, &poll);
      if (signal < 0) continue;
      HttpServer* server = server_;
      if (server == nullptr) std::_Exit(128 + signal);  // nothing is served yet
      if (signal == SIGHUP) {
        server->reload();
        continue;
      }
      log_event(LogLevel::kInfo, draining ? "stopping" : "draining", "signal", signal);
      if (draining) {
        server->stop();
      } else {
        server->drain();
      }
      draining = true;
    }
  }

  sigset_t signals_ = {};
  std::atomic<HttpServer*> server_ = nullptr;
  std::jthread thread_;  // last: starts when the rest is there, joins before it goes
};

// Where a client on this machine finds what listens on `host`.
std::string place_of(const std::string& host, int port) {
  const bool any = host == "0.0.0.0" || host == "::";
  const bool ipv6 = !any && host.find(':') != std::string::npos;
  const std::string shown = any ? "127.0.0.1" : ipv6 ? "[" + host + "]" : host;
  return shown + ":" + std::to_string(port);
}

std::string url_of(const Config& config, int port) {
  if (!config.uds.empty()) return "unix:" + config.uds;
  return (config.ssl_certfile.empty() ? "http://" : "https://") + place_of(config.host, port);
}

}  // namespace

Expected<void> run_serve(const Invocation& invocation) {
  const Config& config = invocation.config;
  SLUICE_TRY(const std::string plan, plan_text(config));
  std::fputs(plan.c_str(), stdout);
  std::fflush(stdout);
  if (invocation.dry_run) return {};

  const auto start = std::chrono::steady_clock::now();
  auto signals = std::make_unique<SignalWatcher>();
  SLUICE_TRY(const auto engine, create_engine(config));
  SLUICE_TRY(const auto server, HttpServer::create(config, *engine));
  signals->set_server(*server);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (server->grpc_port() != 0) {
    const std::string& host = config.grpc_host.empty() ? config.host : config.grpc_host;
    std::printf("gRPC on %s\n", place_of(host, server->grpc_port()).c_str());
  }
  std::printf("serving %s on %s (ready in %.2f s)\n",
              engine->model().path.c_str(),
              url_of(config, server->port()).c_str(),
              seconds.count());
  std::fflush(stdout);
  server->run();
  signals.reset();  // it may call the server until here
  engine->stop();
  return {};
}

}  // namespace sluice
