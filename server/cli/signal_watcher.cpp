// SPDX-License-Identifier: Apache-2.0
#include "server/cli/signal_watcher.h"

#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "engine/core/log.h"
#include "engine/core/node_watch.h"
#include "engine/engine.h"
#include "server/cli/successor.h"
#include "server/http_server.h"

namespace sluice {
namespace {

// After handing over, for requests on connections that were accepted before.
constexpr std::chrono::seconds kLastRequests{2};

}  // namespace

SignalWatcher::SignalWatcher() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGHUP);
  sigaddset(&signals_, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

void SignalWatcher::watch(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const timespec poll = {0, 200'000'000};
    siginfo_t info = {};
    const int signal = sigtimedwait(&signals_, &info, &poll);
    reap_successor();
    HttpServer* server = server_;
    if (signal < 0) {
      end_if_due(server);
      if (server != nullptr) server->reload_changed();
      continue;
    }
    if (server == nullptr) {
      take_without_server(signal);
    } else if (signal == SIGHUP) {
      server->reload();
    } else if (signal == SIGUSR2) {
      restart(*server);
    } else if (successor_ > 0 && info.si_pid == successor_ && !drain_at_) {
      log_event(LogLevel::kInfo, "handed_over", "pid", successor_);
      server->hand_over();
      announce_main_process(successor_);
      drain_at_ = Clock::now() + kLastRequests;
    } else {
      // A user who presses Ctrl-C waits for the prompt; supervisors send SIGTERM.
      const bool stops = draining_ || signal == SIGINT;
      log_event(LogLevel::kInfo, stops ? "stopping" : "draining", "signal", signal);
      end(*server, stops);
    }
  }
}

void SignalWatcher::end(HttpServer& server, bool stops) {
  drain_at_.reset();
  if (stops) {
    server.stop();
  } else {
    server.drain();
  }
  draining_ = true;
}

// Nothing is served here: there is nothing to read again or to hand over. A follower that left at
// once would end its group's streams.
void SignalWatcher::take_without_server(int signal) {
  if (signal == SIGHUP) return;
  const bool is_node = patience_.load().count() > 0;
  if (signal == SIGUSR2) {
    const std::string reason =
        is_node ? takeover_obstacle({.is_node = true}) : "this process is still starting";
    log_event(LogLevel::kError, "restart_failed", "reason", reason);
    return;
  }
  const bool is_follower = is_node && node_stage() == NodeStage::kReady;
  if (!is_follower || signal != SIGTERM || leave_by_) std::_Exit(128 + signal);
  log_event(LogLevel::kInfo, "leaving", "signal", signal);
  ask_nodes_to_end();
  leave_by_ = Clock::now() + patience_.load();
}

void SignalWatcher::end_if_due(HttpServer* server) {
  if (server == nullptr) {
    if (!leave_by_ || Clock::now() < *leave_by_) return;
    log_event(LogLevel::kError, "left", "reason", "node 0 has not ended in time");
    std::_Exit(128 + SIGTERM);
  }
  std::string reason;
  if (drain_at_ && Clock::now() > *drain_at_) {
    reason = "handed over";
  } else if (!draining_) {
    reason = are_nodes_asked_to_end() ? "a node is to end" : engine_->failure();
  }
  if (reason.empty()) return;
  log_event(LogLevel::kInfo, draining_ ? "stopping" : "draining", "reason", reason);
  end(*server, draining_);
}

void SignalWatcher::restart(const HttpServer& server) {
  if (successor_ > 0 || draining_ || drain_at_) return;
  if (const std::string obstacle = takeover_obstacle(kind_); !obstacle.empty()) {
    log_event(LogLevel::kError, "restart_failed", "reason", obstacle);
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
void SignalWatcher::reap_successor() {
  if (successor_ <= 0 || waitpid(successor_, nullptr, WNOHANG) != successor_) return;
  log_event(LogLevel::kError, "restart_failed", "reason", "the next process has ended");
  successor_ = -1;
}

}  // namespace sluice
