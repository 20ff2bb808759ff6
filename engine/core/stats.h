// SPDX-License-Identifier: Apache-2.0
// What the engine counts. The engine thread writes, anybody reads a copy; server/metrics.cpp gives
// the values their Prometheus names at scrape time.
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

// The same with the latest traced request of each bucket.
template <size_t kNumBounds>
struct TracedHistogramData : HistogramData<kNumBounds> {
  std::array<Exemplar, kNumBounds + 1> exemplars{};

  // Where `trace` is not recorded anywhere it counts alone.
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

// Why a step had no drafts though requests could have drafted.
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
  std::array<uint64_t, kNumDraftSources> num_drafts{};  // a request's, of one step, by source
  std::array<uint64_t, kNumDraftSources> num_draft_tokens{};
  std::array<uint64_t, kNumDraftSources> num_accepted_tokens{};
  uint64_t num_padded_rows = 0;  // drafted rows that were not judged: their request had ended
  std::array<uint64_t, kMaxDraftTokens> num_accepted_at{};  // by position in the draft
  std::array<uint64_t, kNumDraftsOff> num_steps_off{};      // by DraftsOff
  uint64_t proposer_ns = 0;                                 // time spent guessing
  HistogramData<9> depth;  // tokens of a draft that a step took, kDraftDepthBounds
  // Gauge: tokens a millisecond over the same without drafts, as the budget expected of the latest
  // step with drafts.
  double gain_ratio = 1;
};

// Grammars of requests since start, and what is kept of them.
struct GrammarCounters {
  uint64_t num_hits = 0;  // in the cache, compiled or being compiled
  uint64_t num_misses = 0;
  uint64_t num_refused = 0;  // of the misses: by gate, library or limits
  int64_t cached_bytes = 0;
};

// A worker as its router sees it.
struct WorkerStats {
  std::string address;
  std::string_view status;   // unknown, live, draining, silent, stuck, other_model; static
  std::string_view breaker;  // closed, half_open, open; static
  int64_t num_requests = 0;  // of this router that it has
};

// Of an engine that is a router; the others have none.
struct RouterStats {
  std::vector<WorkerStats> workers;
  int64_t num_usable = 0;          // of them: get requests
  int64_t num_parked = 0;          // requests without a worker
  uint64_t num_retries = 0;        // after a worker's error
  uint64_t num_continuations = 0;  // requests that went on with another worker
  uint64_t num_lost = 0;           // requests that ended for want of a worker
  uint64_t num_late_outputs = 0;   // of attempts that did not count any more
  uint64_t num_handoffs = 0;       // prompts that were sent to a prefill worker
  uint64_t prefix_queries = 0;     // tokens of requests that a worker was chosen for
  uint64_t prefix_hits = 0;        // of them, that it was known to have
};

// Of an engine that moves KV to other workers or from them; the others have none. A transfer is
// "out" on the worker that computed the prompt and "in" on the one that goes on.
struct HandoffStats {
  // Gauges.
  int64_t num_sessions = 0;       // data planes that are open, one for each peer and direction
  int64_t num_claiming = 0;       // requests outside of the scheduler: the peer has not answered,
  int64_t num_awaiting_room = 0;  // blocks of this worker's own are not to be had yet,
  int64_t num_receiving = 0;      // KV is coming
  int64_t num_reserved_blocks = 0;  // for them
  int64_t num_slots = 0;            // of landing memory
  int64_t num_posted_slots = 0;     // of them, that peers may write into
  int64_t num_offered = 0;          // prompts that are computed or kept for others
  int64_t num_pinned_blocks = 0;    // for them

  // Counters, since start.
  uint64_t num_claims = 0;  // requests for which KV was asked for
  uint64_t num_in = 0;      // transfers that came whole
  uint64_t num_out = 0;     // transfers whose receiver said that it has all
  uint64_t num_failed = 0;  // transfers in that had begun and did not come whole, or were wrong
  uint64_t num_expired = 0;  // offers that nobody took in their time
  uint64_t blocks_in = 0;
  uint64_t blocks_out = 0;
  uint64_t bytes_in = 0;  // of frames; what was dropped is not in
  uint64_t bytes_out = 0;
  uint64_t frames_stale = 0;         // as in KvTransportCounts, like the next three
  uint64_t frames_spoiled = 0;
  uint64_t connections_lost = 0;
  uint64_t connections_refused = 0;
  std::array<uint64_t, kNumHandoffFallbacks> fallbacks{};  // by HandoffFallback

  HistogramData<12> wait_time;       // of num_in, from the request's arrival here to all its KV
  HistogramData<12> transfer_time;   // of num_in, from the first landing slot on
  HistogramData<12> transfer_bytes;  // of num_in
};

struct EngineStats {
  // Gauges.
  int64_t num_requests_running = 0;
  int64_t num_requests_waiting = 0;
  int64_t num_blocks_total = 0;
  int64_t num_blocks_used = 0;
  int32_t block_size = 0;

  // Counters, since start.
  uint64_t num_steps = 0;
  uint64_t device_idle_ns = 0;  // StepRecord's
  uint64_t num_preemptions = 0;
  uint64_t num_refused = 0;  // requests that were not let in: the queue was full
  uint64_t num_expired = 0;  // that had not started at their deadline
  uint64_t prompt_tokens = 0;
  uint64_t generation_tokens = 0;
  uint64_t prefix_cache_queries = 0;  // tokens
  uint64_t prefix_cache_hits = 0;     // tokens
  uint64_t kv_tier_queries = 0;       // tokens not in the prefix cache, looked up in the tier below
  uint64_t kv_tier_hits = 0;          // tokens brought back from there
  uint64_t kv_tier_stored = 0;        // blocks written there
  std::array<uint64_t, 5> requests_finished{};  // by FinishReason

  // Health: a step is outstanding since this time (steady clock, ns), or 0; the last completed.
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
