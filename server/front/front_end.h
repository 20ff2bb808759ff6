// SPDX-License-Identifier: Apache-2.0
// The state that all connections share: the engine, the model's names, keys and template, the
// counters, and the routes from method and path to a handler. Handlers run on I/O threads.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/memory_reserve.h"
#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/handoff/fallback_counters.h"
#include "engine/handoff/handoff_config.h"
#include "server/front/ignored_arguments.h"
#include "server/front/kv_params.h"
#include "server/front/metrics.h"
#include "server/front/request_histograms.h"
#include "server/front/response_store.h"
#include "server/front/route.h"
#include "server/front/served_model.h"
#include "server/front/usage.h"
#include "server/http/api_errors.h"
#include "server/http/body_budget.h"
#include "server/http/cors.h"
#include "server/http/http_message.h"
#include "server/http/tls.h"
#include "server/keys/auth.h"
#include "server/prompt/validation_context.h"
#include "server/traces/tracer.h"
#include "server/traces/transfer_spans.h"

namespace sluice {

class LogLine;

// One request with what its handler needs beside the shared state.
struct Exchange {
  HttpRequest request;
  std::shared_ptr<ResponseWriter> writer;  // shared with the connection's pending operations
  size_t route_idx = 0;
  ErrorForm error_form = ErrorForm::kOpenAi;
  uint64_t tenant_salt = 0;
  std::shared_ptr<Tenant> tenant;  // null on routes that need no key
  std::optional<Usage> usage;      // for the log, like the next three
  std::string model;               // that the request is for; empty: not read
  bool is_stream = false;
  std::string finish_reasons;  // of its choices, in the order in which they ended
  // Arguments of the body that were ignored; the answer names them.
  IgnoredArguments ignored{UnknownArguments::kIgnore};
  std::chrono::steady_clock::time_point arrival;
};

// Adds the request's trace identifiers, if it has any, to its line in the log.
void add_trace(const TraceContext& trace, LogLine& line);

// Adds the header that names the ignored arguments, if there are any; respond() calls it.
void add_ignored(const IgnoredArguments& ignored, HttpHeaders& headers);

class FrontEnd {
 public:
  // The routes outlive it.
  static Expected<std::unique_ptr<FrontEnd>> create(const Config& config,
                                                    Engine& engine,
                                                    std::span<const Route> routes);
  ~FrontEnd();
  FrontEnd(const FrontEnd&) = delete;
  FrontEnd& operator=(const FrontEnd&) = delete;

  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer);
  // Returns false where handle() needs no body to answer: without a valid key where the path asks
  // for one, or where nothing is at the path. Any thread.
  [[nodiscard]] bool wants_body(const HttpRequest& header) const;
  // Returns true where the request may read large answers that are kept for its tenant. Any thread.
  [[nodiscard]] bool is_costly(const HttpRequest& header) const;

  // Sends the response and counts it.
  void respond(const Exchange& exchange, HttpResponse response);
  void fail(const Exchange& exchange, const Error& error);
  // Fails a request that was not let in, which has a span all the same.
  void refuse(Exchange& exchange, const Error& error);
  // One line, where that is asked for; of probes and scrapes only at --log-level debug, unless they
  // fail. respond() does it for what it sends.
  void log_request(const Exchange& exchange, int status) const;

  // Counts what a request's validation left out, and logs each name once, but only a few hundred
  // names, because clients choose them. Any thread.
  void note_ignored(const IgnoredArguments& ignored);

  // Counts the handoffs that a request asked for in vain, and logs each reason at most once a
  // minute, so that nothing is computed twice in silence. Any thread.
  void note_fallbacks(const FallbackCounts& fallbacks);

  // Counts a request that ends with an error of the engine, if that is the want of a worker and the
  // request is not read again for another version. Any thread.
  void note_lost(const Error& error) {
    if (error.code == ErrorCode::kUnavailable) num_lost.fetch_add(1, std::memory_order_relaxed);
  }

  // Returns what one request is checked against, and takes a seed for it. Any thread.
  ValidationContext validation_context(std::shared_ptr<const ServedModel> served,
                                       uint64_t tenant_salt,
                                       std::chrono::steady_clock::time_point arrival);

  // Returns the model that most new requests go to, which describes the server. Any thread.
  [[nodiscard]] std::shared_ptr<const ServedModel> usual_model();
  // Returns the model that the next new request goes to. Any thread.
  [[nodiscard]] std::shared_ptr<const ServedModel> next_model();
  // Returns all that take new requests, the usual one first. Any thread.
  [[nodiscard]] std::vector<std::shared_ptr<const ServedModel>> all_models();

  // Tells whether the engine is a router, whose versions change. Any thread.
  [[nodiscard]] bool has_versions() { return !engine.versions().empty(); }
  // Tells whether others take new requests and this one none any more. Any thread.
  [[nodiscard]] bool has_left(const ServedModel& model);

  // Returns their names, each once: versions of a model may have the same. Any thread.
  [[nodiscard]] std::vector<NamedModel> named_models();

  // Returns read(validation_context(...)), an Expected, for the model that the next request goes
  // to. A request that names a model which only other versions have is read for one of these.
  // kUnavailable: there is too little memory now for a tree of so many bytes.
  template <typename Read>
  auto read_request(uint64_t tenant_salt,
                    std::chrono::steady_clock::time_point arrival,
                    size_t input_bytes,
                    const Read& read);

  // Returns why this server should get no requests; empty: healthy. Any thread, cheap.
  [[nodiscard]] std::string illness() const;

  // Reads certificates and keys again; errors are logged, and the old ones stay. Any thread.
  void reload();

  // Any thread.
  void start_draining() { draining_.store(true); }

  [[nodiscard]] bool is_draining() const { return draining_.load(); }

  // Requests are still answered, but connections end with their answers. Any thread.
  void start_leaving() { leaving_.store(true); }

  // Whether connections end with their answers: leaving or draining. Any thread.
  [[nodiscard]] bool is_leaving() const { return leaving_.load() || is_draining(); }

  void request_started() { num_requests_.fetch_add(1); }

  void request_done();

  [[nodiscard]] int64_t num_requests() const { return num_requests_.load(); }

  // Returns false at the limit: the caller closes the socket.
  bool connection_opened();

  void connection_closed() { num_connections_.fetch_sub(1); }

  void count_unrouted(int status) { http_counters.count(kUnroutedHandler, status); }

  // Called when the last open request ends; set before the workers run.
  void on_quiescent(std::function<void()> callback) { on_quiescent_ = std::move(callback); }

  const Config config;
  const std::span<const Route> routes;
  const HandoffConfig handoff;
  const std::string engine_id;  // the name by which routers name this engine to its peers
  Engine& engine;
  Authenticator authenticator;
  BodyBudget bodies;
  const std::unique_ptr<ResponseStore> responses;
  const std::unique_ptr<TlsContext> tls;  // null: plain HTTP
  const CorsPolicy cors;
  Tracer tracer;
  TransferSpans transfer_spans{tracer};
  const std::chrono::steady_clock::time_point start;
  const int64_t created;  // Unix seconds
  HttpCounters http_counters;
  GrpcCounters grpc_counters;
  FinishCounters finish_counters;
  AnswerCounters answer_counters;
  RequestHistograms request_histograms;
  FallbackCounters handoff_fallbacks;
  std::atomic<uint64_t> num_ignored_arguments{0};
  std::atomic<uint64_t> num_lost{0};

 private:
  // Returns null where there is none for the request.
  [[nodiscard]] const Route* route_of(const HttpRequest& header) const;
  // Returns a seed for a request without one: a function of the configured seed and a counter.
  uint64_t next_seed();

  FrontEnd(const Config& server_config,
           std::span<const Route> route_table,
           HandoffConfig handoff_part,
           Engine& served,
           std::shared_ptr<const ServedModel> model,
           std::unique_ptr<TlsContext> tls_context,
           std::optional<TraceSettings> traces);

  std::atomic<bool> draining_{false};
  std::atomic<bool> leaving_{false};
  std::atomic<int64_t> num_requests_{0};
  const int64_t most_connections_;
  std::atomic<int64_t> num_connections_{0};
  std::atomic<uint64_t> num_seeds_{0};
  std::function<void()> on_quiescent_;
  std::mutex ignored_mutex_;
  std::set<std::string> ignored_names_;  // names logged so far; guarded by ignored_mutex_

  struct KnownModel {
    std::shared_ptr<Engine> version;
    std::shared_ptr<const ServedModel> model;  // null: it cannot be served
  };

  std::shared_ptr<const ServedModel> served_by(std::shared_ptr<Engine> version);

  std::mutex models_mutex_;
  std::vector<KnownModel> models_;  // guarded by models_mutex_; never empty
};

template <typename Read>
auto FrontEnd::read_request(uint64_t tenant_salt,
                            std::chrono::steady_clock::time_point arrival,
                            size_t input_bytes,
                            const Read& read) {
  const std::shared_ptr<const ServedModel> next = next_model();
  const auto read_for = [&](const std::shared_ptr<const ServedModel>& model) {
    return read(validation_context(model, tenant_salt, arrival));
  };
  const auto kept = keep_memory_for(input_bytes);
  if (!kept) return decltype(read_for(next))(tl::unexpected(kept.error()));
  auto result = read_for(next);
  const auto is_unknown = [](const Error& error) { return error.machine_code == kModelNotFound; };
  if (result || !is_unknown(result.error())) return result;
  for (const auto& other : all_models()) {
    if (other->names == next->names) continue;
    auto again = read_for(other);
    if (again || !is_unknown(again.error())) return again;
  }
  return result;
}

// Handlers, one per endpoint; each answers through the exchange, at once or later.
void handle_chat_completions(FrontEnd& front_end, Exchange exchange);
void handle_completions(FrontEnd& front_end, Exchange exchange);
void handle_responses(FrontEnd& front_end, Exchange exchange);
void handle_response(FrontEnd& front_end, Exchange exchange);
void handle_delete_response(FrontEnd& front_end, Exchange exchange);
void handle_response_items(FrontEnd& front_end, Exchange exchange);
void handle_cancel_response(FrontEnd& front_end, Exchange exchange);
void handle_count_response_tokens(FrontEnd& front_end, Exchange exchange);
void handle_compact_response(FrontEnd& front_end, Exchange exchange);
void handle_messages(FrontEnd& front_end, Exchange exchange);
void handle_count_tokens(FrontEnd& front_end, Exchange exchange);
void handle_render_chat(FrontEnd& front_end, Exchange exchange);
void handle_render_completion(FrontEnd& front_end, Exchange exchange);
void handle_embeddings(FrontEnd& front_end, Exchange exchange);
void handle_pooling(FrontEnd& front_end, Exchange exchange);
void handle_cohere_embed(FrontEnd& front_end, Exchange exchange);
void handle_rerank(FrontEnd& front_end, Exchange exchange);
void handle_score(FrontEnd& front_end, Exchange exchange);
void handle_classify(FrontEnd& front_end, Exchange exchange);
void handle_tei_embed(FrontEnd& front_end, Exchange exchange);
void handle_tei_embed_all(FrontEnd& front_end, Exchange exchange);
void handle_tei_similarity(FrontEnd& front_end, Exchange exchange);
void handle_tei_predict(FrontEnd& front_end, Exchange exchange);
void handle_tei_info(FrontEnd& front_end, Exchange exchange);
void handle_models(FrontEnd& front_end, Exchange exchange);
void handle_model(FrontEnd& front_end, Exchange exchange);
void handle_health(FrontEnd& front_end, Exchange exchange);
void handle_query(FrontEnd& front_end, Exchange exchange);
void handle_server_info(FrontEnd& front_end, Exchange exchange);
void handle_model_info(FrontEnd& front_end, Exchange exchange);
void handle_version(FrontEnd& front_end, Exchange exchange);
void handle_metrics(FrontEnd& front_end, Exchange exchange);
void handle_debug_state(FrontEnd& front_end, Exchange exchange);
void handle_debug_trace(FrontEnd& front_end, Exchange exchange);
void handle_load(FrontEnd& front_end, Exchange exchange);
void handle_openapi(FrontEnd& front_end, Exchange exchange);
void handle_page(FrontEnd& front_end, Exchange exchange);
void handle_tokenize(FrontEnd& front_end, Exchange exchange);
void handle_tokenizer_info(FrontEnd& front_end, Exchange exchange);
void handle_detokenize(FrontEnd& front_end, Exchange exchange);
void handle_tei_decode(FrontEnd& front_end, Exchange exchange);

}  // namespace sluice
