// SPDX-License-Identifier: Apache-2.0
// All that running a step takes, as a value: the scheduler's decision and, once for each request,
// what rows of it are chosen and scored by. The side that runs steps is told nothing else about
// requests, so that a step could be sent to another process: parameters and grammars are shared
// here because they never change.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/types.h"
#include "engine/request_table.h"
#include "engine/sampling/grammar/grammar.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_output.h"

namespace sluice {

// A request whose rows begin with this step; decisions name it by its slot from now on.
struct BegunRequest {
  RequestId id;
  int32_t slot = 0;
  int32_t num_prompt_tokens = 0;
  std::shared_ptr<const SamplingParams> params;
  std::shared_ptr<const Grammar> grammar = {};  // null: none
  std::vector<TokenId> begins_behind = {};      // as in GrammarSpec
  // The prompt and what another worker generated; what steps choose follows them. Empty where no
  // choice reads them (reads_history()).
  std::vector<TokenId> tokens = {};
  bool checks_first_row = false;  // SampledRequest::check of its first token is wanted
};

// Whether a choice of the request's tokens depends on those before, other than through the logits.
[[nodiscard]] bool reads_history(const BegunRequest& request);

struct StepOrder {
  SchedulerOutput decision;
  std::vector<BegunRequest> begun;   // before the step
  std::vector<int32_t> ended_slots;  // the same, and before those: of requests without more rows
};

// Turns decisions into orders. Engine thread.
class StepOrders {
 public:
  explicit StepOrders(int32_t num_slots) : begun_(static_cast<size_t>(num_slots)) {}

  // Each decision once, in order. Both sides know the requests of the decision.
  void write(const SchedulerOutput& decision,
             const Scheduler& scheduler,
             const RequestTable& requests,
             StepOrder& order);

  // Both sides have forgotten what steps chose of it: its next rows begin it once more.
  void begin_again(RequestId id);

  // Writes to `slots`, which is empty, those of requests that have ended since; no later order
  // names them as ended.
  void take_ended(const RequestTable& requests, std::vector<int32_t>& slots);

 private:
  std::vector<RequestId> begun_;     // by slot; RequestId{}: none
  std::vector<RequestId> restarted_;  // of those
  uint64_t num_ended_ = 0;        // requests of the table, when they were last looked for
};

}  // namespace sluice
