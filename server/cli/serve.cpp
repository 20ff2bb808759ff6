// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "engine/core/log.h"
#include "engine/engine.h"
#include "engine/inspect.h"
#include "server/cli/command.h"
#include "server/cli/successor.h"
#include "server/http_server.h"

namespace sluice {
namespace {

// SIGTERM, SIGINT and SIGHUP as a thread's work instead of a handler's: the signals are blocked in
// every thread and taken here. Before a server is there, a signal ends the process; then the first
// drains and the second stops. SIGHUP lets the server read certificates and keys again; SIGUSR2
// starts another process that takes over the socket, and whose SIGTERM says that it serves.
class SignalWatcher {
 public:
  // Before any other thread starts: they inherit the blocked signals.
  SignalWatcher() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGHUP);
    sigaddset(&signals_, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  }

  // The server must be there until this object has gone.
  // `has_gpu`: there is no room for another engine beside it.
  void set_server(HttpServer& server, bool has_gpu) {
    has_gpu_ = has_gpu;
    server_ = &server;
  }

 private:
  // After handing over, for requests on connections that were accepted before.
  static constexpr std::chrono::seconds kLastRequests{2};

  void watch(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const timespec poll = {0, 200'000'000};
      siginfo_t info = {};
      const int signal = sigtimedwait(&signals_, &info, &poll);
      reap_successor();
      HttpServer* server = server_;
      if (signal < 0) {
        if (drain_at_ && std::chrono::steady_clock::now() > *drain_at_) end(*server, SIGTERM);
        continue;
      }
      if (server == nullptr) std::_Exit(128 + signal);  // nothing is served yet
      if (signal == SIGHUP) {
        server->reload();
      } else if (signal == SIGUSR2) {
        restart(*server);
      } else if (successor_ > 0 && info.si_pid == successor_ && !drain_at_) {
        log_event(LogLevel::kInfo, "handed_over", "pid", successor_);
        server->hand_over();
        drain_at_ = std::chrono::steady_clock::now() + kLastRequests;
      } else {
        end(*server, signal);
      }
    }
  }

  void end(HttpServer& server, int signal) {
    drain_at_.reset();
    log_event(LogLevel::kInfo, draining_ ? "stopping" : "draining", "signal", signal);
    if (draining_) {
      server.stop();
    } else {
      server.drain();
    }
    draining_ = true;
  }

  void restart(const HttpServer& server) {
    if (successor_ > 0 || draining_ || drain_at_) return;
    if (has_gpu_) {
      log_event(LogLevel::kError,
                "restart_failed",
                "reason",
                "the GPU has no room for the next process beside this one");
      return;
    }
    const auto started = start_successor(server.listening_descriptor());
    if (started) {
      successor_ = *started;
      log_event(LogLevel::kInfo, "successor_started", "pid", successor_);
    } else {
      log_event(LogLevel::kError, "restart_failed", "reason", started.error().message);
    }
  }

  // One that fails before it serves changes nothing.
  void reap_successor() {
    if (successor_ <= 0 || waitpid(successor_, nullptr, WNOHANG) != successor_) return;
    log_event(LogLevel::kError, "restart_failed", "reason", "the next process has ended");
    successor_ = -1;
  }

  sigset_t signals_ = {};
  bool has_gpu_ = false;  // written before server_
  std::atomic<HttpServer*> server_ = nullptr;
  // The thread's own.
  pid_t successor_ = -1;
  std::optional<std::chrono::steady_clock::time_point> drain_at_;  // handed over
  bool draining_ = false;
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
  SLUICE_TRY(const auto server, HttpServer::create(config, *engine, inherited_listener()));
  signals->set_server(*server, engine->model().is_on_gpu());
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
  relieve_predecessor();
  server->run();
  signals.reset();  // it may call the server until here
  engine->stop();
  return {};
}

}  // namespace sluice
