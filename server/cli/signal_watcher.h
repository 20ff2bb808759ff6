// SPDX-License-Identifier: Apache-2.0
// SIGTERM, SIGINT and SIGHUP as a thread's work instead of a handler's: the signals are blocked in
// every thread and taken here. Before a server is there, a signal ends the process; then the first
// drains and the second stops. SIGHUP lets the server read certificates and keys again, which it
// also does within a second of a change of their files; SIGUSR2 starts another process that takes
// over the socket, and whose SIGTERM says that it serves. Without a server SIGHUP and SIGUSR2
// change nothing. A node above 0 of a model has none: its first SIGTERM lets node 0 drain, with
// whose end it ends.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "server/cli/successor.h"

namespace sluice {

class Engine;
class HttpServer;

class SignalWatcher {
 public:
  using Clock = std::chrono::steady_clock;

  // Called before any other thread starts: they inherit the blocked signals.
  SignalWatcher();

  // Server and engine outlive this object. When the engine fails, the server drains.
  void set_server(HttpServer& server, const Engine& engine, const ServingProcess& kind) {
    kind_ = kind;
    engine_ = &engine;
    server_ = &server;
  }

  // This process is a node above 0, which waits for node 0's end for so long.
  void set_follower(std::chrono::seconds patience) { patience_ = patience; }

 private:
  void watch(const std::stop_token& stop);
  void end(HttpServer& server, bool stops);
  void take_without_server(int signal);
  void end_if_due(HttpServer* server);
  void restart(const HttpServer& server);
  void reap_successor();

  sigset_t signals_ = {};
  ServingProcess kind_;             // written before server_
  const Engine* engine_ = nullptr;  // likewise
  std::atomic<HttpServer*> server_ = nullptr;
  std::atomic<std::chrono::seconds> patience_ = std::chrono::seconds(0);  // of a follower
  // Members of the thread's own.
  pid_t successor_ = -1;
  std::optional<Clock::time_point> drain_at_;  // set at a handover
  std::optional<Clock::time_point> leave_by_;  // set when a follower is to leave
  bool draining_ = false;
  std::jthread thread_;  // last: starts when the rest is there, joins before it goes
};

}  // namespace sluice
