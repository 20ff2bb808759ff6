// SPDX-License-Identifier: Apache-2.0
// Clients, admission, scheduler and KV manager on a simulated clock: shows each tenant's share of
// an engine whose steps cost what the options say, and what drafts give or cost it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/core/draft.h"

#include "scheduler/admission.h"
#include "scheduler/scheduler.h"

namespace sluice {

// Requests that arrive at random, at this mean rate, or in streams: each begins a request, waits
// for its end, pauses, and begins the next one.
struct LoadClient {
  TenantId tenant{};
  double requests_per_s = 1;
  int32_t num_streams = 0;  // 0: at random
  double pause_ms = 0;      // of a stream; exponential, on average
  double until_s = 1e9;     // streams begin no request later
  int32_t num_prompt = 256;
  int32_t num_output = 32;  // max_tokens
  double mean_answer = 0;   // exponential, at most num_output; 0: always num_output
  bool comes_back = false;  // retries when told to
};

// Drafts for the requests that decode. All are of one confidence bin.
struct LoadDrafts {
  int32_t num_tokens = 0;  // for a request in a step, at most; 0: no drafts
  DraftSource source = DraftSource::kNgram;
  double offered = 1;     // share of the stretches of 16 tokens in which a request has drafts
  double propose_ms = 0;  // for a request; of a model: for a pass over all, plus a tenth for each
  // The probability that a draft's token is right if those before it are.
  std::function<double(double now_ms, uint64_t request)> acceptance;
};

struct LoadOptions {
  SchedulerOptions scheduler;
  AdmissionOptions admission;
  int32_t num_blocks = 0;  // 16 tokens each; 0: enough for everything that can run
  double step_ms = 2;
  double prompt_token_ms = 0.25;
  double decode_ms = 0.3;
  // If set: what the decodes and drafts of a step cost, in place of step_ms and decode_ms.
  std::function<double(double now_ms, int64_t num_rows, int64_t num_draft_rows)> rows_ms;
  double noise = 0;       // the width, around 1, of a uniform factor on the time of a step
  double slow_share = 0;  // share of steps that other work disturbs: they take `slowdown` times
  double slowdown = 3;
  LoadDrafts drafts;
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

// The steps of a run.
struct LoadSteps {
  double ms = 0;      // with the time of making drafts
  double off_ms = 0;  // what the same tokens would have taken without drafts
  int64_t num_steps = 0;
  int64_t num_drafted = 0;  // tokens
  int64_t num_accepted = 0;

  [[nodiscard]] double gain() const { return off_ms / ms; }
};

// Returns one result per client.
std::vector<LoadResult> run_load(const LoadOptions& options,
                                 const std::vector<LoadClient>& clients,
                                 LoadSteps* steps = nullptr);

}  // namespace sluice
