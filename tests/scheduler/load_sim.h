// SPDX-License-Identifier: Apache-2.0
// Clients, admission, scheduler and KV manager on a simulated clock: shows each tenant's share of
// an engine whose steps cost what the options say.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/admission.h"
#include "scheduler/scheduler.h"

namespace sluice {

// Requests that arrive at random, at this mean rate.
struct LoadClient {
  TenantId tenant{};
  double requests_per_s = 1;
  int32_t num_prompt = 256;
  int32_t num_output = 32;  // max_tokens
  double mean_answer = 0;   // exponential, at most num_output; 0: always num_output
  bool comes_back = false;  // retries when told to
};

struct LoadOptions {
  SchedulerOptions scheduler;
  AdmissionOptions admission;
  int32_t num_blocks = 0;  // 16 tokens each; 0: enough for everything that can run
  double step_ms = 2;
  double prompt_token_ms = 0.25;
  double decode_ms = 0.3;
  double seconds = 300;
  uint64_t seed = 1;
};

struct LoadResult {
  std::vector<double> first_token_ms;  // from arrival; after retries, from the last one
  int64_t num_arrived = 0;
  int64_t num_refused = 0;       // counts refusals
  int64_t num_without_time = 0;  // part of these without a time to retry
  int64_t num_broken = 0;        // retried in time and were refused
  int64_t num_returned = 0;      // retried in time and were let in
  int64_t num_finished = 0;      // before the end of the simulation
  int64_t num_generated = 0;     // tokens
  int64_t num_preempted = 0;     // times
  int64_t num_lost_tokens = 0;   // computed and lost by preemption

  [[nodiscard]] double percentile_ms(double share) const;
};

// Returns one result per client.
std::vector<LoadResult> run_load(const LoadOptions& options,
                                 const std::vector<LoadClient>& clients);

}  // namespace sluice
