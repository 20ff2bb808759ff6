// SPDX-License-Identifier: Apache-2.0
// Clients, admission, scheduler and KV manager on a clock that only counts: what a tenant gets of
// an engine whose steps cost what the options say.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/admission.h"
#include "scheduler/scheduler.h"

namespace sluice {

// Requests that come at random, as many a second on average.
struct LoadClient {
  TenantId tenant{};
  double requests_per_s = 1;
  int32_t num_prompt = 256;
  int32_t num_output = 32;  // max_tokens
  double mean_answer = 0;   // exponential, at most num_output; 0: all of them
  bool comes_back = false;  // when it was told to
};

struct LoadOptions {
  SchedulerOptions scheduler;
  AdmissionOptions admission;
  int32_t num_blocks = 0;  // of 16 tokens; 0: enough for all that can run
  double step_ms = 2;
  double prompt_token_ms = 0.25;
  double decode_ms = 0.3;
  double seconds = 300;
  uint64_t seed = 1;
};

struct LoadResult {
  std::vector<double> first_token_ms;  // from arrival, the last one where it came again
  int64_t num_arrived = 0;
  int64_t num_refused = 0;       // refusals
  int64_t num_without_time = 0;  // of those, not told when to come back
  int64_t num_broken = 0;        // came back as told and were refused
  int64_t num_returned = 0;      // came back as told and were let in
  int64_t num_finished = 0;      // within the time
  int64_t num_generated = 0;     // tokens
  int64_t num_preempted = 0;     // times
  int64_t num_lost_tokens = 0;   // computed, and lost by preemption

  [[nodiscard]] double percentile_ms(double share) const;
};

// One result for each client.
std::vector<LoadResult> run_load(const LoadOptions& options,
                                 const std::vector<LoadClient>& clients);

}  // namespace sluice
