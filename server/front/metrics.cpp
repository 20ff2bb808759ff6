// SPDX-License-Identifier: Apache-2.0
#include "server/front/metrics.h"

#include <prometheus/metric_family.h>

#include <array>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "server/front/metric_families.h"
#include "server/front/program_metrics.h"
#include "server/front/route.h"

namespace sluice {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricType;

void add_gauges(Families& out, const EngineStats& stats, const Config& config) {
  out.gauge("vllm:num_requests_running",
            "Requests in the running batch.",
            static_cast<double>(stats.num_requests_running));
  out.gauge("vllm:num_requests_waiting",
            "Requests waiting for admission.",
            static_cast<double>(stats.num_requests_waiting));
  const double total = static_cast<double>(stats.num_blocks_total);
  out.gauge("vllm:kv_cache_usage_perc",
            "Share of the KV cache blocks in use, 0 to 1.",
            total > 0 ? static_cast<double>(stats.num_blocks_used) / total : 0);
  if (stats.num_states_total > 0) {
    out.gauge("sluice_states_total",
              "States of recurrent layers that there is room for.",
              static_cast<double>(stats.num_states_total));
    out.gauge("sluice_states_used",
              "States that running requests hold; the others are free or snapshots.",
              static_cast<double>(stats.num_states_used));
  }
  out.open("vllm:cache_config_info",
           "Settings of the KV cache.",
           MetricType::Gauge,
           {{"block_size", std::to_string(stats.block_size)},
            {"cache_dtype", config.kv_cache_dtype},
            {"enable_prefix_caching", config.enable_prefix_caching ? "True" : "False"},
            {"engine", "0"},
            {"num_gpu_blocks", std::to_string(stats.num_blocks_total)}})
      .gauge.value = 1;
}

void add_counters(Families& out, const EngineStats& stats, const FinishCounters& finished) {
  out.counter("vllm:prefix_cache_queries_total",
              "Prompt tokens looked up in the prefix cache.",
              stats.prefix_cache_queries);
  out.counter("vllm:prefix_cache_hits_total",
              "Prompt tokens found in the prefix cache.",
              stats.prefix_cache_hits);
  out.counter("vllm:external_prefix_cache_queries_total",
              "Prompt tokens looked up in the tier below the prefix cache.",
              stats.kv_tier_queries);
  out.counter("vllm:external_prefix_cache_hits_total",
              "Prompt tokens brought back from there.",
              stats.kv_tier_hits);
  out.counter("sluice_kv_tier_stored_blocks_total", "Blocks written there.", stats.kv_tier_stored);
  out.counter("vllm:num_preemptions_total", "Preempted requests.", stats.num_preemptions);
  out.counter("vllm:admission_rejections_total",
              "Requests that the queue had no room for.",
              stats.num_refused);
  out.counter("sluice_expired_requests_total",
              "Requests that had not started at their deadline.",
              stats.num_expired);
  out.counter("vllm:prompt_tokens_total", "Prompt tokens processed.", stats.prompt_tokens);
  out.counter("vllm:generation_tokens_total", "Tokens generated.", stats.generation_tokens);
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError}) {
    out.open("vllm:request_success_total",
             "Finished requests by reason.",
             MetricType::Counter,
             out.labels_with("finished_reason", std::string(to_string(reason))))
        .counter.value = static_cast<double>(finished.value(reason));
  }
  out.counter("sluice_steps_total", "Engine steps completed.", stats.num_steps);
  out.counter("sluice_device_idle_seconds_total",
              "Time in which a GPU had no step between two that followed each other.",
              1e-9 * static_cast<double>(stats.device_idle_ns));
}

uint64_t sum_of(const std::array<uint64_t, kNumDraftSources>& by_source) {
  return std::accumulate(by_source.begin(), by_source.end(), uint64_t{0});
}

// vLLM's names are totals; ours say which source drafted.
void add_drafts(Families& out, const DraftStats& drafts) {
  const std::pair<const char*, const std::array<uint64_t, kNumDraftSources>*> counters[] = {
      {"drafts", &drafts.num_drafts},
      {"draft_tokens", &drafts.num_draft_tokens},
      {"accepted_tokens", &drafts.num_accepted_tokens}};
  for (const auto& [what, by_source] : counters) {
    out.counter(("vllm:spec_decode_num_" + std::string(what) + "_total").c_str(),
                "Speculation: drafts are those of one request in one step.",
                static_cast<double>(sum_of(*by_source)));
  }
  for (size_t position = 0; position < drafts.num_accepted_at.size(); ++position) {
    if (position > 0 && drafts.num_accepted_at[position] == 0) break;
    out.open("vllm:spec_decode_num_accepted_tokens_per_pos_total",
             "Accepted tokens by their position in the draft.",
             MetricType::Counter,
             out.labels_with("position", std::to_string(position)))
        .counter.value = static_cast<double>(drafts.num_accepted_at[position]);
  }
  for (const auto& [what, by_source] : counters) {
    const std::string name = "sluice_spec_" + std::string(what) + "_total";
    for (size_t source = 0; source < kNumDraftSources; ++source) {
      const auto label = std::string(to_string(static_cast<DraftSource>(source)));
      out.open(name.c_str(),
               "The same by source of the draft.",
               MetricType::Counter,
               out.labels_with("source", label))
          .counter.value = static_cast<double>((*by_source)[source]);
    }
  }
  for (size_t reason = 0; reason < kNumDraftsOff; ++reason) {
    const auto label = std::string(to_string(static_cast<DraftsOff>(reason)));
    out.open("sluice_spec_off_steps_total",
             "Steps without drafts though requests could have drafted, by reason.",
             MetricType::Counter,
             out.labels_with("reason", label))
        .counter.value = static_cast<double>(drafts.num_steps_off[reason]);
  }
  out.counter("sluice_spec_draft_rows_padded_total",
              "Drafted rows of requests that had ended.",
              static_cast<double>(drafts.num_padded_rows));
  out.counter("sluice_spec_proposer_seconds_total",
              "Time spent on guessing tokens.",
              1e-9 * static_cast<double>(drafts.proposer_ns));
  out.gauge(
      "sluice_spec_gain_ratio",
      "Tokens a millisecond over the same step without drafts, as expected of the latest one.",
      drafts.gain_ratio);
  out.histogram(
      "sluice_spec_depth", "Tokens of a draft that a step took.", kDraftDepthBounds, drafts.depth);
}

void add_grammars(Families& out, const GrammarCounters& grammars) {
  out.counter("sluice_grammar_cache_hits_total",
              "Requests whose grammar was compiled, or being compiled, for an earlier one.",
              static_cast<double>(grammars.num_hits));
  out.counter("sluice_grammar_cache_misses_total",
              "Requests whose grammar had to be compiled.",
              static_cast<double>(grammars.num_misses));
  out.counter("sluice_grammar_refused_total",
              "Grammars that were refused: by keyword, as no grammar, or beyond a limit.",
              static_cast<double>(grammars.num_refused));
  out.gauge("sluice_grammar_cache_bytes",
            "Size of the compiled grammars that are kept.",
            static_cast<double>(grammars.cached_bytes));
}

void add_histograms(Families& out, const EngineStats& stats) {
  out.histogram("vllm:time_to_first_token_seconds",
                "From arrival to the first token.",
                kFirstTokenBounds,
                stats.time_to_first_token);
  out.histogram("vllm:inter_token_latency_seconds",
                "Between two tokens of a request.",
                kInterTokenBounds,
                stats.inter_token_latency);
  // The name before vLLM's 0.12, which many dashboards still ask for.
  const HistogramData<kInterTokenBounds.size()>& between = stats.inter_token_latency;
  out.histogram("vllm:time_per_output_token_seconds",
                "The same as vllm:inter_token_latency_seconds.",
                kInterTokenBounds,
                between);
  out.histogram("vllm:e2e_request_latency_seconds",
                "From arrival to the last token.",
                kRequestBounds,
                stats.e2e_latency);
  out.histogram("vllm:request_queue_time_seconds",
                "From arrival to the first scheduling.",
                kRequestBounds,
                stats.queue_time);
  out.histogram("vllm:request_prefill_time_seconds",
                "From the first scheduling to the first token.",
                kRequestBounds,
                stats.prefill_time);
  out.histogram("vllm:request_decode_time_seconds",
                "From the first token to the last.",
                kRequestBounds,
                stats.decode_time);
  out.histogram("vllm:request_prompt_tokens", "Prompt tokens.", kLengthBounds, stats.prompt_length);
  out.histogram("vllm:request_generation_tokens",
                "Generated tokens.",
                kLengthBounds,
                stats.generation_length);
  out.histogram("vllm:iteration_tokens_total",
                "Tokens per engine step.",
                kIterationBounds,
                stats.iteration_tokens);
  out.histogram("sluice_step_seconds",
                "Execution and sampling of an engine step.",
                kStepTimeBounds,
                stats.step_time);
}

void add_http(Families& out, const HttpCounters& http, std::span<const Route> routes) {
  for (size_t handler = 0; handler < kMaxRoutes; ++handler) {
    for (size_t i = 0; i < HttpCounters::kStatuses.size(); ++i) {
      const uint64_t value = http.value(handler, i);
      if (value == 0) continue;
      out.open("http_requests_total",
               "HTTP responses by handler and status.",
               MetricType::Counter,
               {{"handler", std::string(route_name(routes, handler))},
                {"method", std::string(route_method(routes, handler))},
                {"status", std::to_string(HttpCounters::kStatuses[i])}})
          .counter.value = static_cast<double>(value);
    }
  }
}

// The names of the gRPC ecosystem's own middleware. Calls that went well are there from the start,
// so that a rate of them is one.
void add_grpc(Families& out, const GrpcCounters& grpc, bool is_served) {
  for (size_t method = 0; method < kGrpcMethods.size(); ++method) {
    for (size_t code = 0; code < GrpcCounters::kCodes.size(); ++code) {
      const uint64_t value = grpc.value(method, code);
      const bool is_expected = is_served && code == 0;
      if (value == 0 && !is_expected) continue;
      out.open("grpc_server_handled_total",
               "gRPC calls by method and status code.",
               MetricType::Counter,
               {{"grpc_code", GrpcCounters::kCodes[code]},
                {"grpc_method", std::string(kGrpcMethods[method].method)},
                {"grpc_service", std::string(kGrpcMethods[method].service)},
                {"grpc_type", std::string(kGrpcMethods[method].type)}})
          .counter.value = static_cast<double>(value);
    }
  }
}

void add_versions(Families& out, const RouterStats& router) {
  for (const WorkerStats& worker : router.workers) {
    if (worker.fingerprint.empty()) continue;
    out.open("sluice:router_worker_differs",
             "1 for a worker that gets no new requests because others have another fingerprint.",
             MetricType::Gauge,
             {{"fingerprint", worker.fingerprint}, {"worker", worker.address}})
        .gauge.value = worker.differs ? 1 : 0;
  }
  // Family by family, as a scrape must not have one twice.
  const auto of_each = [&](const char* name, const char* help, auto value_of) {
    for (const FingerprintStats& version : router.fingerprints) {
      out.open(name, help, MetricType::Gauge, {{"fingerprint", version.fingerprint}}).gauge.value =
          value_of(version);
    }
  };
  of_each("sluice:router_fingerprint_workers",
          "Workers of a fingerprint that may get requests now.",
          [](const FingerprintStats& version) { return static_cast<double>(version.num_ready); });
  of_each("sluice:router_fingerprint_requests",
          "Requests that only workers of a fingerprint can go on with.",
          [](const FingerprintStats& version) {
            return static_cast<double>(version.num_requests);
          });
  of_each("sluice:router_fingerprint_share",
          "Part of the new requests that goes to a fingerprint.",
          [](const FingerprintStats& version) { return version.share; });
}

void add_router(Families& out, const RouterStats& router, uint64_t num_lost) {
  out.gauge("sluice:router_usable_workers",
            "Workers that may get a request now.",
            static_cast<double>(router.num_usable));
  out.gauge("sluice:router_parked_requests",
            "Requests that wait for a worker.",
            static_cast<double>(router.num_parked));
  out.counter("sluice:router_retries_total",
              "Requests that were sent again after a worker's error.",
              static_cast<double>(router.num_retries));
  out.counter("sluice:router_continuations_total",
              "Requests that went on with another worker because theirs was lost.",
              static_cast<double>(router.num_continuations));
  out.counter("sluice:router_lost_requests_total",
              "Requests that ended with an error for want of a worker.",
              static_cast<double>(num_lost));
  out.counter("sluice:router_late_outputs_total",
              "Outputs that were dropped because another worker had the request.",
              static_cast<double>(router.num_late_outputs));
  out.counter("sluice:router_handoffs_total",
              "Prompts that were sent to a prefill worker.",
              static_cast<double>(router.num_handoffs));
  out.counter("sluice:router_prefix_queries_total",
              "Tokens of requests that a worker was chosen for.",
              static_cast<double>(router.prefix_queries));
  out.counter("sluice:router_prefix_hits_total",
              "Of them, tokens that the worker was known to have cached.",
              static_cast<double>(router.prefix_hits));
  for (const WorkerStats& worker : router.workers) {
    out.open("sluice:router_worker_state",
             "1 for the status that a worker has.",
             MetricType::Gauge,
             {{"status", std::string(worker.status)}, {"worker", worker.address}})
        .gauge.value = 1;
  }
  for (const WorkerStats& worker : router.workers) {
    const double state = worker.breaker == "closed" ? 0 : worker.breaker == "half_open" ? 1 : 2;
    out.open("sluice:router_breaker_state",
             "Of a worker: 0 closed, 1 half open, 2 open.",
             MetricType::Gauge,
             {{"worker", worker.address}})
        .gauge.value = state;
  }
  for (const WorkerStats& worker : router.workers) {
    out.open("sluice:router_worker_requests",
             "Requests of this router that a worker has.",
             MetricType::Gauge,
             {{"worker", worker.address}})
        .gauge.value = static_cast<double>(worker.num_requests);
  }
}

void add_answers(Families& families, const AnswerCounters& answers) {
  const auto add = [&](const char* name, const char* help, const std::atomic<uint64_t>& count) {
    families.counter(name, help, static_cast<double>(count.load(std::memory_order_relaxed)));
  };
  add("sluice_tool_calls_total", "Calls of tools in answers.", answers.num_calls);
  add("sluice_cut_tool_calls_total",
      "Calls of tools in which an answer was cut off.",
      answers.num_cut_calls);
  add("sluice_refused_tool_calls_total",
      "Calls that were left out of answers, of tools that the request did not allow.",
      answers.num_refused_calls);
  add("sluice_reasoning_tokens_total",
      "Generated tokens of reasoning.",
      answers.num_reasoning_tokens);
}

// Every reason from the start, so that a rate of it is one. The front end decides some, the engine
// the others.
void add_fallbacks(Families& out, const EngineStats& stats, const FallbackCounters& front_end) {
  for (size_t i = 0; i < kNumHandoffFallbacks; ++i) {
    const auto reason = static_cast<HandoffFallback>(i);
    const uint64_t of_engine = stats.handoff ? stats.handoff->fallbacks[i] : 0;
    out.open("sluice_handoff_fallbacks_total",
             "Prompts that were to come from another worker and were computed here, by reason.",
             MetricType::Counter,
             out.labels_with("reason", std::string(to_string(reason))))
        .counter.value = static_cast<double>(front_end.value(reason) + of_engine);
  }
}

// A gauge or counter for each value of a label.
void add_by_label(Families& out,
                  const char* name,
                  const char* help,
                  MetricType type,
                  const char* label,
                  std::initializer_list<std::pair<const char*, double>> values) {
  for (const auto& [of, value] : values) {
    ClientMetric& metric = out.open(name, help, type, out.labels_with(label, of));
    (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
  }
}

// vLLM's names count the transfers that a decode worker received whole, and the offers of a prefill
// worker that expired unclaimed.
void add_transfers(Families& out, const HandoffStats& stats) {
  const auto both = [&](const char* name, const char* help, uint64_t in, uint64_t out_of) {
    add_by_label(out,
                 name,
                 help,
                 MetricType::Counter,
                 "direction",
                 {{"in", static_cast<double>(in)}, {"out", static_cast<double>(out_of)}});
  };
  out.histogram("vllm:nixl_xfer_time_seconds",
                "Of KV from another worker, from the first place for it to the last byte.",
                kTransferTimeBounds,
                stats.transfer_time);
  out.histogram("vllm:nixl_bytes_transferred",
                "Bytes of KV that one request got from another worker.",
                kTransferBytesBounds,
                stats.transfer_bytes);
  out.counter("vllm:nixl_num_failed_transfers_total",
              "Transfers of KV to this worker that had begun and were of no use.",
              static_cast<double>(stats.num_failed));
  out.counter("vllm:nixl_num_kv_expired_reqs_total",
              "Prompts that were kept for other workers until their time was over.",
              static_cast<double>(stats.num_expired));
  out.histogram("sluice_handoff_wait_seconds",
                "From the arrival of a request to its KV from another worker.",
                kTransferTimeBounds,
                stats.wait_time);
  out.counter("sluice_handoff_claims_total",
              "Requests for which KV of another worker was asked for.",
              static_cast<double>(stats.num_claims));
  both("sluice_handoff_transfers_total", "Whole transfers of KV.", stats.num_in, stats.num_out);
  both("sluice_handoff_blocks_total", "Blocks of KV moved.", stats.blocks_in, stats.blocks_out);
  both("sluice_handoff_bytes_total", "Bytes of KV moved.", stats.bytes_in, stats.bytes_out);
  add_by_label(out,
               "sluice_handoff_dropped_frames_total",
               "Pieces of KV that came and were not taken, by reason.",
               MetricType::Counter,
               "reason",
               {{"stale", static_cast<double>(stats.frames_stale)},
                {"spoiled", static_cast<double>(stats.frames_spoiled)}});
  add_by_label(out,
               "sluice_handoff_closed_connections_total",
               "Connections of the data plane that ended, by the side that did it.",
               MetricType::Counter,
               "by",
               {{"peer", static_cast<double>(stats.connections_lost)},
                {"own", static_cast<double>(stats.connections_refused)}});
}

// Data planes, requests, blocks and slots of handoffs at this moment.
void add_transfers_now(Families& out, const HandoffStats& stats) {
  out.gauge("sluice_handoff_sessions",
            "Open data planes, by peer and direction.",
            static_cast<double>(stats.num_sessions));
  add_by_label(out,
               "sluice_handoff_requests",
               "Requests that wait for KV of another worker, and prompts kept for others.",
               MetricType::Gauge,
               "state",
               {{"claiming", static_cast<double>(stats.num_claiming)},
                {"awaiting_room", static_cast<double>(stats.num_awaiting_room)},
                {"receiving", static_cast<double>(stats.num_receiving)},
                {"offered", static_cast<double>(stats.num_offered)}});
  add_by_label(out,
               "sluice_handoff_held_blocks",
               "Blocks that are reserved for KV on its way, or pinned for others.",
               MetricType::Gauge,
               "for",
               {{"in", static_cast<double>(stats.num_reserved_blocks)},
                {"out", static_cast<double>(stats.num_pinned_blocks)}});
  out.gauge("sluice_handoff_landing_slots",
            "Places where KV of other workers arrives.",
            static_cast<double>(stats.num_slots));
  out.gauge("sluice_handoff_posted_slots",
            "Of them, places that wait for KV.",
            static_cast<double>(stats.num_posted_slots));
}

}  // namespace

void HttpCounters::count(size_t handler, int status) {
  for (size_t i = 0; i < kStatuses.size(); ++i) {
    if (kStatuses[i] == status) {
      counts_[handler][i].fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
}

std::string metrics_text(const MetricSources& sources, MetricsForm form) {
  const EngineStats& stats = sources.stats;
  Families families(sources.model_name);
  add_gauges(families, stats, sources.config);
  add_counters(families, stats, sources.finished);
  families.counter("sluice_ignored_arguments_total",
                   "Arguments of requests that were left out because they are not known.",
                   static_cast<double>(sources.num_ignored_arguments));
  families.counter("sluice_trace_spans_exported_total",
                   "Spans that a collector took.",
                   static_cast<double>(sources.traces.exported));
  families.counter("sluice_trace_spans_dropped_total",
                   "Spans that no collector took: the queue was full, or it refused or was away.",
                   static_cast<double>(sources.traces.dropped));
  add_answers(families, sources.answers);
  add_fallbacks(families, stats, sources.handoff_fallbacks);
  if (stats.handoff) {
    add_transfers(families, *stats.handoff);
    add_transfers_now(families, *stats.handoff);
  }
  add_histograms(families, stats);
  add_requests(families, sources.requests);
  add_drafts(families, stats.drafts);
  add_grammars(families, stats.grammars);
  if (stats.router) {
    add_router(families, *stats.router, sources.num_lost);
    add_versions(families, *stats.router);
  }
  add_http(families, sources.http, sources.routes);
  add_grpc(families, sources.grpc, sources.config.grpc_port >= 0);
  add_program(families, sources.program);
  return families.text(form);
}

}  // namespace sluice
