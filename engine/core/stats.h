// SPDX-License-Identifier: Apache-2.0
// The engine's counters. The engine thread writes them, other threads read a copy;
// server/front/metrics.cpp gives the values their Prometheus names at scrape time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/handoff_fallback.h"
#include "engine/core/trace_context.h"
#include "engine/core/types.h"

namespace sluice {

// A histogram with fixed bounds (ascending upper bounds, seconds or counts); one writer, any
// readers. Copyable as a snapshot.
template <size_t kNumBounds>
struct HistogramData {
  std::array<uint64_t, kNumBounds + 1> counts{};  // last: above every bound
  double sum = 0;

  void observe(const std::array<double, kNumBounds>& bounds, double value) {
    size_t i = 0;
    while (i < kNumBounds && value > bounds[i]) ++i;
    ++counts[i];
    sum += value;
  }
};

// A request that was counted in a bucket, and where its trace is found.
struct Exemplar {
  std::array<uint8_t, 16> trace_id{};  // all zero: there is none
  std::array<uint8_t, 8> span_id{};
  double value = 0;
  int64_t time_ns = 0;  // since the Unix epoch
};

// A histogram with the latest traced request of each bucket.
template <size_t kNumBounds>
struct TracedHistogramData : HistogramData<kNumBounds> {
  std::array<Exemplar, kNumBounds + 1> exemplars{};

  // A value is only counted if `trace` is recorded nowhere.
  void observe(const std::array<double, kNumBounds>& bounds,
               double value,
               const TraceContext& trace) {
    HistogramData<kNumBounds>::observe(bounds, value);
    if (!trace.is_set() || !trace.is_sampled) return;
    size_t i = 0;
    while (i < kNumBounds && value > bounds[i]) ++i;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    exemplars[i] = {trace.trace_id,
                    trace.span_id,
                    value,
                    std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()};
  }
};

// vLLM's bucket bounds, so that its dashboards read ours.
inline constexpr std::array<double, 22> kFirstTokenBounds = {
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
inline constexpr std::array<double, 19> kInterTokenBounds = {
    .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
inline constexpr std::array<double, 21> kRequestBounds = {
    .3, .5, .8, 1,  1.5, 2,  2.5, 5,   10,  15,  20,
    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
inline constexpr std::array<double, 20> kLengthBounds = {
    1,    2,    5,    10,    20,    50,    100,    200,    500,    1000,
    2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000};
inline constexpr std::array<double, 13> kIterationBounds = {
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
inline constexpr std::array<double, 15> kStepTimeBounds = {
    .001, .0025, .005, .01, .02, .03, .04, .06, .08, .1, .15, .2, .5, 1, 5};
inline constexpr std::array<double, 12> kTransferTimeBounds = {
    .005, .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5};
inline constexpr std::array<double, 12> kTransferBytesBounds = {0x1p11,
                                                                0x1p13,
                                                                0x1p15,
                                                                0x1p17,
                                                                0x1p19,
                                                                0x1p21,
                                                                0x1p23,
                                                                0x1p25,
                                                                0x1p27,
                                                                0x1p29,
                                                                0x1p31,
                                                                0x1p33};
inline constexpr std::array<double, 9> kDraftDepthBounds = {0, 1, 2, 3, 4, 8, 16, 32, 64};

// The reason why a step had no drafts although requests could have drafted.
enum class DraftsOff : uint8_t { kLoad, kGuard, kBlocks, kAcceptance };
inline constexpr size_t kNumDraftsOff = 4;
constexpr std::string_view to_string(DraftsOff reason) {
  switch (reason) {
    case DraftsOff::kLoad: return "load";
    case DraftsOff::kGuard: return "guard";
    case DraftsOff::kBlocks: return "blocks";
    case DraftsOff::kAcceptance: return "acceptance";
  }
  return "unknown";
}

// Speculation, counted since start: drafted = accepted + rejected + padded.
struct DraftStats {
  std::array<uint64_t, kNumDraftSources> num_drafts{};  // requests with drafts in a step, by source
  std::array<uint64_t, kNumDraftSources> num_draft_tokens{};
  std::array<uint64_t, kNumDraftSources> num_accepted_tokens{};
  uint64_t num_padded_rows = 0;  // drafted rows that were not judged: their request had ended
  std::array<uint64_t, kMaxDraftTokens> num_accepted_at{};  // by position in the draft
  std::array<uint64_t, kNumDraftsOff> num_steps_off{};      // by DraftsOff
  uint64_t proposer_ns = 0;                                 // time spent guessing
  HistogramData<9> depth;  // drafted tokens taken by a step, kDraftDepthBounds
  // Gauge: tokens per millisecond relative to no drafts, as the budget predicted for the latest
  // step with drafts.
  double gain_ratio = 1;
};

// Grammars of requests: counters since start, and what is cached.
struct GrammarCounters {
  uint64_t num_hits = 0;  // in the cache, compiled or being compiled
  uint64_t num_misses = 0;
  uint64_t num_refused = 0;  // part of the misses: by gate, library or limits
  int64_t cached_bytes = 0;
};

// A worker as its router sees it.
struct WorkerStats {
  std::string address;
  std::string fingerprint;   // empty: not described yet
  std::string_view status;   // unknown, live, draining, silent, stuck, other_model; static
  std::string_view breaker;  // closed, half_open, open; static
  int64_t num_requests = 0;  // requests of this router on it
  bool differs = false;      // new requests go to workers of other fingerprints only
};

// The workers of one fingerprint as their router sees them.
struct FingerprintStats {
  std::string fingerprint;
  int64_t num_ready = 0;     // workers that may get requests
  int64_t num_requests = 0;  // requests that only they can continue
  double share = 0;          // of new requests, in [0, 1]
};

// Counters of an engine that is a router; other engines have none.
struct RouterStats {
  std::vector<WorkerStats> workers;
  std::vector<FingerprintStats> fingerprints;  // the oldest first
  int64_t num_usable = 0;          // workers that get requests
  int64_t num_parked = 0;          // requests without a worker
  uint64_t num_retries = 0;        // after a worker's error
  uint64_t num_continuations = 0;  // requests moved to another worker
  uint64_t num_late_outputs = 0;   // outputs of attempts that no longer count
  uint64_t num_handoffs = 0;       // prompts sent to a prefill worker
  uint64_t prefix_queries = 0;     // tokens of requests that got a worker
  uint64_t prefix_hits = 0;        // part of those known to be cached there
};

// KV transfers of an engine that exchanges KV; other engines have none. A transfer is "out" on the
// worker that computed the prompt and "in" on the one that continues.
struct HandoffStats {
  // Gauges.
  int64_t num_sessions = 0;       // open data planes, one per peer and direction
  int64_t num_claiming = 0;       // requests outside the scheduler: peer not answered yet,
  int64_t num_awaiting_room = 0;  // waiting for blocks of this worker,
  int64_t num_receiving = 0;      // KV is coming
  int64_t num_reserved_blocks = 0;  // held by these requests
  int64_t num_slots = 0;            // landing slots
  int64_t num_posted_slots = 0;     // landing slots that peers may write
  int64_t num_offered = 0;          // prompts computed or kept for other workers
  int64_t num_pinned_blocks = 0;    // held by offered prompts

  // Counters, since start.
  uint64_t num_claims = 0;  // requests that asked for KV
  uint64_t num_in = 0;      // transfers received completely
  uint64_t num_out = 0;     // transfers whose receiver confirmed completion
  uint64_t num_failed = 0;  // incoming transfers begun and then incomplete or wrong
  uint64_t num_expired = 0;  // offers that no worker took in time
  uint64_t blocks_in = 0;
  uint64_t blocks_out = 0;
  uint64_t bytes_in = 0;  // frames; excludes dropped ones
  uint64_t bytes_out = 0;
  uint64_t frames_stale = 0;         // this and the next three: as in KvTransportCounts
  uint64_t frames_spoiled = 0;
  uint64_t connections_lost = 0;
  uint64_t connections_refused = 0;
  std::array<uint64_t, kNumHandoffFallbacks> fallbacks{};  // by HandoffFallback

  HistogramData<12> wait_time;       // per num_in, from the request's arrival here to all its KV
  HistogramData<12> transfer_time;   // per num_in, from the first landing slot on
  HistogramData<12> transfer_bytes;  // per num_in
};

struct EngineStats {
  // Gauges.
  int64_t num_requests_running = 0;
  int64_t num_requests_waiting = 0;
  int64_t num_blocks_total = 0;
  int64_t num_blocks_used = 0;
  int64_t num_states_total = 0;  // of recurrent layers, counted among the blocks too
  int64_t num_states_used = 0;   // by running requests
  int32_t block_size = 0;

  // Counters, since start.
  uint64_t num_steps = 0;
  uint64_t device_idle_ns = 0;  // sum of StepRecord::device_idle_ns
  uint64_t num_preemptions = 0;
  uint64_t num_refused = 0;  // requests refused because the queue was full
  uint64_t num_expired = 0;  // requests not started at their deadline
  uint64_t prompt_tokens = 0;
  uint64_t generation_tokens = 0;
  uint64_t prefix_cache_queries = 0;  // tokens
  uint64_t prefix_cache_hits = 0;     // tokens
  uint64_t kv_tier_queries = 0;       // tokens not in the prefix cache, looked up in the tier below
  uint64_t kv_tier_hits = 0;          // tokens restored from there
  uint64_t kv_tier_stored = 0;        // blocks written there
  std::array<uint64_t, 5> requests_finished{};  // by FinishReason

  // Health: start of the outstanding step (steady clock, ns) or 0, and the last completed step.
  int64_t step_started_ns = 0;
  int64_t last_progress_ns = 0;
  bool draining = false;

  TracedHistogramData<22> time_to_first_token;
  TracedHistogramData<19> inter_token_latency;
  TracedHistogramData<21> e2e_latency;
  HistogramData<21> queue_time;
  HistogramData<21> prefill_time;
  HistogramData<21> decode_time;
  HistogramData<20> prompt_length;
  HistogramData<20> generation_length;
  HistogramData<13> iteration_tokens;
  HistogramData<15> step_time;  // execution and sampling

  DraftStats drafts;
  GrammarCounters grammars;
  std::optional<HandoffStats> handoff;
  std::optional<RouterStats> router;
};

}  // namespace sluice
