// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <memory>

#include "engine/engine.h"
#include "engine/inspect.h"
#include "server/cli/command.h"
#include "server/cli/listen_lines.h"
#include "server/cli/signal_watcher.h"
#include "server/cli/successor.h"
#include "server/grpc/kv_control.h"
#include "server/http_server.h"

namespace sluice {

Expected<void> run_serve(const Invocation& invocation) {
  const Config& config = invocation.config;
  SLUICE_TRY_VOID(HttpServer::check(config, !invocation.dry_run && inherited_listener() < 0));
  SLUICE_TRY(const std::string plan, plan_text(config));
  print_plan(plan, invocation.dry_run);
  if (invocation.dry_run) return {};

  const auto start = std::chrono::steady_clock::now();
  auto signals = std::make_unique<SignalWatcher>();
  warn_of_exposure(config);
  SLUICE_TRY(const auto engine, create_worker_engine(config, open_kv_peers));
  SLUICE_TRY(const auto server, HttpServer::create(config, *engine, inherited_listener()));
  signals->set_server(*server, engine->model().is_on_gpu());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print_ready("serving", engine->model(), config, *server, seconds.count());
  relieve_predecessor();
  server->run();
  signals.reset();  // it may call the server until here
  engine->stop();
  return {};
}

}  // namespace sluice
