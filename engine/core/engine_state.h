// SPDX-License-Identifier: Apache-2.0
// The engine's report on its requests, cache and last steps. Values only; never a prompt or a
// token.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/core/stats.h"
#include "engine/core/types.h"

namespace sluice {

// The parts of a request's time up to its latest token, in milliseconds.
struct RequestTimings {
  double queued_ms = 0;   // from arrival to the first step with its tokens
  double prefill_ms = 0;  // from there to its first token
  double decode_ms = 0;   // from its first token to its latest
  int32_t num_preemptions = 0;
};

// A waiting or running request.
struct RequestSummary {
  RequestId id;
  TenantId tenant;
  // "restoring" (its prefix is read from a tier below the cache), "waiting", "running" or
  // "preempted"; a static string.
  std::string_view status;
  int32_t priority = 0;
  double age_ms = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_cached_tokens = 0;    // part of the prompt found in the prefix cache
  int32_t num_computed_tokens = 0;  // tokens with valid KV
  int32_t num_generated = 0;
  int32_t max_tokens = 0;
  int32_t num_blocks = 0;  // blocks held over all groups
  int32_t num_draft_tokens = 0;     // drafts that steps took
  int32_t num_accepted_tokens = 0;  // accepted ones of these
  RequestTimings timings = {};
};

// A request's part of a step.
struct StepItem {
  RequestId id;
  int32_t position = 0;  // position of its first token
  int32_t num_tokens = 0;
  bool samples = false;  // it got a token
  int32_t num_drafts = 0;  // trailing tokens that are drafts
};

// Times are of the steady clock, in nanoseconds.
struct StepRecord {
  uint64_t number = 0;  // the first step is 1
  int64_t begin_ns = 0;
  int64_t scheduled_ns = 0;  // the scheduler has decided
  int64_t started_ns = 0;    // the device began; GPU: the previous step was seen done
  int64_t executed_ns = 0;   // the layers have run; GPU: the whole step was seen done
  int64_t sampled_ns = 0;    // logits, sampling; GPU: the host's part of these
  int64_t retired_ns = 0;    // returned to the engine thread
  int64_t end_ns = 0;        // counted, queued for the front end
  int64_t device_idle_ns = 0;  // GPU: idle before the step, if it was queued after a step that had
                               // not ended
  double predicted_ms = 0;   // predicted execution and sampling; 0: not yet known
  int32_t num_tokens = 0;
  int32_t num_prefill_tokens = 0;
  int32_t num_preempted = 0;
  int32_t num_in_flight = 0;  // unretired steps when it was submitted
  int32_t num_running = 0;    // after the step
  int32_t num_waiting = 0;
  std::vector<StepItem> items;
};

inline constexpr int32_t kKeptSteps = 1024;  // number of steps remembered

// Time of steps with `num_rows` rows or slightly fewer.
struct RowTime {
  int64_t num_rows = 0;
  double ms = 0;  // median of recent steps
};

struct EngineState {
  EngineStats stats;
  std::vector<RowTime> row_times;        // ascending; empty: not yet known
  int64_t num_blocks_free = 0;           // neither referenced nor findable
  int64_t num_blocks_cached = 0;         // findable, evictable
  std::vector<RequestSummary> requests;  // in order of arrival
  std::vector<StepRecord> steps;         // oldest first
};

}  // namespace sluice
