// SPDX-License-Identifier: Apache-2.0
// `sluice router`: the server's front end over workers elsewhere.
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "engine/inspect.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "server/cli/command.h"
#include "server/cli/listen_lines.h"
#include "server/cli/signal_watcher.h"
#include "server/cli/successor.h"
#include "server/grpc/worker_secret.h"
#include "server/http_server.h"
#include "server/router/remote_engine.h"

namespace sluice {
namespace {

// Loads the tokenizer of --model.
Expected<std::unique_ptr<Tokenizer>> own_tokenizer(const std::string& model) {
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) return load_tokenizer(model);
  SLUICE_TRY(HfText text, load_hf_text(model));
  return std::move(text.tokenizer);
}

// Loads the tokenizer of --model now, so that a wrong name ends the start, and again for each
// version of the workers that needs one of its own. Empty: the workers' files make them.
Expected<VersionSet::MakeTokenizer> own_tokenizers(const std::string& model) {
  if (model.empty()) return VersionSet::MakeTokenizer();
  SLUICE_TRY(auto loaded, own_tokenizer(model));
  const auto first = std::make_shared<std::unique_ptr<Tokenizer>>(std::move(loaded));
  return [model, first]() -> Expected<std::unique_ptr<Tokenizer>> {
    if (*first != nullptr) return std::move(*first);
    return own_tokenizer(model);
  };
}

// What the router is going to do, as lines of text.
std::string plan_of(const Config& config) {
  std::string text;
  const auto row = [&text](std::string name, const std::string& value) {
    constexpr size_t kColumn = 14;
    name.resize(kColumn, ' ');
    text += name + value + "\n";
  };
  for (const std::string& item : config.workers) row("workers", item);
  row("tokenizer", config.model.empty() ? "of the first worker that answers" : config.model);
  row("to workers",
      std::string(config.worker_ssl_ca_certs.empty() ? "not encrypted" : "TLS") +
          (config.worker_secret.empty() ? ", no secret" : ", with the secret"));
  row("a request",
      "waits " + std::to_string(config.worker_wait_s) + " s for another worker, may lose " +
          std::to_string(config.max_worker_losses) + " in a row");
  row("affinity",
      std::to_string(config.affinity_blocks) + " blocks of each worker, by what it was sent");
  row("HTTP", url_of(config, config.port));
  if (config.grpc_port >= 0) row("gRPC", "port " + std::to_string(config.grpc_port));
  return text;
}

}  // namespace

Expected<void> run_router(const Invocation& invocation) {
  const Config& config = invocation.config;
  SLUICE_TRY_VOID(check_worker_secret(config));
  SLUICE_TRY_VOID(HttpServer::check(config, !invocation.dry_run && inherited_listener() < 0));
  print_plan(plan_of(config), invocation.dry_run);
  if (invocation.dry_run) return {};

  const auto start = std::chrono::steady_clock::now();
  auto signals = std::make_unique<SignalWatcher>();
  warn_of_exposure(config);
  SLUICE_TRY(auto make_tokenizer, own_tokenizers(config.model));
  SLUICE_TRY(const auto engine, RemoteEngine::create(config, std::move(make_tokenizer)));
  SLUICE_TRY(const auto server, HttpServer::create(config, *engine, inherited_listener()));
  signals->set_server(*server, *engine, {});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print_ready("routing", engine->model(), config, *server, seconds.count());
  relieve_predecessor();
  const Expected<void> served = server->run();
  signals.reset();  // it may call the server until here
  engine->stop();
  server->log_totals();
  return served;
}

}  // namespace sluice
