// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <memory>

#include "engine/core/log.h"
#include "engine/engine.h"
#include "engine/inspect.h"
#include "engine/ranks_check.h"
#include "server/cli/command.h"
#include "server/cli/follower.h"
#include "server/cli/listen_lines.h"
#include "server/cli/signal_watcher.h"
#include "server/cli/successor.h"
#include "server/grpc/kv_control.h"
#include "server/grpc/worker_secret.h"
#include "server/http/socket_name.h"
#include "server/http_server.h"

namespace sluice {
namespace {

// For what node 0 cuts off when its time to drain is over.
constexpr std::chrono::seconds kLastWords{10};

// A client that reaches the port of node 0 without proof could join the model.
Expected<void> check_nodes(const Config& config) {
  if (config.nnodes == 1) return {};
  SLUICE_TRY_VOID(check_worker_secret(config));
  if (is_loopback(config.master_addr) || !config.worker_secret.empty()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "--master-addr: found " + config.master_addr +
                        " without --worker-secret, expected a loopback address without it",
                    "master-addr");
}

}  // namespace

Expected<void> run_ranks_check(const Invocation& invocation) {
  SLUICE_TRY_VOID(check_nodes(invocation.config));
  return check_rank_processes(invocation.config, [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  });
}

Expected<void> run_serve(const Invocation& invocation) {
  const Config& config = invocation.config;
  if (!invocation.nodes_source.empty()) {
    log_event(LogLevel::kInfo, "nodes_settled", "reason", invocation.nodes_source);
  }
  prepare_node_process(config);
  const bool listens = config.node_rank == 0 && !invocation.dry_run && inherited_listener() < 0;
  SLUICE_TRY_VOID(HttpServer::check(config, listens));
  SLUICE_TRY_VOID(check_nodes(config));
  SLUICE_TRY(const std::string plan, plan_text(config));
  print_plan(plan, invocation.dry_run);
  if (invocation.dry_run) return {};

  const auto start = std::chrono::steady_clock::now();
  auto signals = std::make_unique<SignalWatcher>();
  if (config.node_rank > 0) {
    signals->set_follower(std::chrono::seconds(config.drain_timeout_s) + kLastWords);
    return run_follower(config);
  }
  warn_of_exposure(config);
  SLUICE_TRY(const auto engine, create_worker_engine(config, open_kv_peers));
  SLUICE_TRY(const auto server, HttpServer::create(config, *engine, inherited_listener()));
  signals->set_server(
      *server, *engine, {.has_gpu = engine->model().is_on_gpu(), .is_node = config.nnodes > 1});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print_ready("serving", engine->model(), config, *server, seconds.count());
  relieve_predecessor();
  const Expected<void> served = server->run();
  signals.reset();  // it may call the server until here
  const std::string failure = engine->failure();
  engine->stop();
  server->log_totals();
  if (!failure.empty()) return make_error(ErrorCode::kUnavailable, failure);
  return served;
}

}  // namespace sluice
