// SPDX-License-Identifier: Apache-2.0
// A self-contained order for one step: the scheduler's decision and, once per request, the
// parameters by which its rows are chosen and scored. The side that runs steps learns nothing else
// about requests, so a step could be sent to another process. Parameters and grammars are shared
// pointers here because they never change.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/types.h"
#include "engine/sampling/grammar/grammar.h"
#include "scheduler/scheduler_output.h"

namespace sluice {

// A request whose rows begin with this step; later decisions name it by its slot.
struct BegunRequest {
  RequestId id;
  int32_t slot = 0;
  int32_t num_prompt_tokens = 0;
  std::shared_ptr<const SamplingParams> params;
  std::shared_ptr<const Grammar> grammar = {};  // null: none
  std::vector<TokenId> begins_behind = {};      // see GrammarSpec
  // The prompt and what another worker generated; chosen tokens are appended. Empty where no choice
  // reads them (reads_history()).
  std::vector<TokenId> tokens = {};
  bool checks_first_row = false;  // SampledRequest::check of its first token is wanted
};

// Whether a choice of the request's tokens depends on earlier tokens other than through the logits.
[[nodiscard]] bool reads_history(const BegunRequest& request);

struct StepOrder {
  SchedulerOutput decision;
  std::vector<BegunRequest> begun;   // applied before the step
  std::vector<int32_t> ended_slots;  // requests without more rows; applied before `begun`
};

}  // namespace sluice
