// SPDX-License-Identifier: Apache-2.0
// What the engine tells of itself when asked: its requests, its cache and its last steps. Values
// only; never a prompt or a token.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/core/stats.h"
#include "engine/core/types.h"

namespace sluice {

// Where a request's time went, up to its latest token. Milliseconds.
struct RequestTimings {
  double queued_ms = 0;   // from arrival to the first step that has tokens of it
  double prefill_ms = 0;  // from there to its first token
  double decode_ms = 0;   // from its first token to its latest
  int32_t num_preemptions = 0;
};

// A request that waits or runs.
struct RequestSummary {
  RequestId id;
  // "restoring" (its prefix is read from a tier below the cache), "waiting", "running",
  // "preempted"; static.
  std::string_view status;
  int32_t priority = 0;
  double age_ms = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_cached_tokens = 0;    // of the prompt, found in the prefix cache
  int32_t num_computed_tokens = 0;  // whose KV is there
  int32_t num_generated = 0;
  int32_t max_tokens = 0;
  int32_t num_blocks = 0;  // it holds, all groups
  int32_t num_draft_tokens = 0;     // that steps took of its drafts
  int32_t num_accepted_tokens = 0;  // of them
  RequestTimings timings = {};
};

// A request's part of a step.
struct StepItem {
  RequestId id;
  int32_t position = 0;  // of its first token
  int32_t num_tokens = 0;
  bool samples = false;  // it got a token
  int32_t num_drafts = 0;  // of num_tokens, the last ones: guesses
};

// Times are of the steady clock, in nanoseconds.
struct StepRecord {
  uint64_t number = 0;  // the first step is 1
  int64_t begin_ns = 0;
  int64_t scheduled_ns = 0;  // the scheduler has decided
  int64_t started_ns = 0;    // the device has begun with it; a GPU: the one before was seen done
  int64_t executed_ns = 0;   // the layers have run; of a GPU: all of it is seen done
  int64_t sampled_ns = 0;    // logits, sampling; of a GPU: what the host has of these
  int64_t retired_ns = 0;    // the engine thread has it back
  int64_t end_ns = 0;        // counted, queued for the front end
  int64_t device_idle_ns = 0;  // of a GPU, before it, where it was put into the queue behind a step
                               // that had not ended
  double predicted_ms = 0;   // by the cost model, of execution and sampling; 0: not yet known
  int32_t num_tokens = 0;
  int32_t num_prefill_tokens = 0;
  int32_t num_preempted = 0;
  int32_t num_in_flight = 0;  // steps that were not retired when it was submitted
  int32_t num_running = 0;    // after it
  int32_t num_waiting = 0;
  std::vector<StepItem> items;
};

inline constexpr int32_t kKeptSteps = 1024;  // that are remembered

// Steps of so many rows, or a few less.
struct RowTime {
  int64_t num_rows = 0;
  double ms = 0;  // the median of the latest ones
};

struct EngineState {
  EngineStats stats;
  std::vector<RowTime> row_times;        // by rising rows; empty: not yet known
  int64_t num_blocks_free = 0;           // neither referenced nor findable
  int64_t num_blocks_cached = 0;         // findable, evictable
  std::vector<RequestSummary> requests;  // in order of arrival
  std::vector<StepRecord> steps;         // oldest first
};

}  // namespace sluice
