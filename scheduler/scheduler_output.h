// SPDX-License-Identifier: Apache-2.0
// The whole decision of one step, as a value, and what came back.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/types.h"
#include "kvcache/kv_cache_manager.h"

namespace sluice {

struct ScheduledRequest {
  RequestId id;
  int32_t num_computed_tokens = 0;   // position of the first token of this step
  int32_t num_scheduled_tokens = 0;  // tokens this step, >= 1
  bool samples = false;              // the last known token is among them: a new one is chosen
  int32_t slot = 0;                  // its own while it is here, below Scheduler::num_slots()
};

struct RequestFailure {
  RequestId id;
  const char* reason;  // static string
};

struct SchedulerOutput {
  uint64_t step_id = 0;
  std::vector<ScheduledRequest> scheduled;  // decodes first, then prefill chunks
  // By recompute; they wait again. Read before `scheduled`: with room one may be back at once.
  std::vector<RequestId> preempted;
  // Preempted ones that there is room for again: whoever has kept their KV may bring it back into
  // the prefix cache, and calls resume() in any case, now or later. Until then they hold nothing.
  std::vector<RequestId> restoring;
  std::vector<RequestFailure> failed;  // cannot ever run (forward progress rule); already gone
  std::vector<RequestId> expired;      // had not started at their deadline; already gone
  std::vector<KvBlockCopy> copies;     // before the step runs, in order
  int32_t total_tokens = 0;
  int32_t num_prefill_tokens = 0;
  double predicted_ms = 0;
};

// One sampled token of a step, in the order of SchedulerOutput::scheduled (rows that sample).
struct SampledToken {
  RequestId id;
  TokenId token = kInvalidToken;  // kInvalidToken: the step failed for it; its KV is not cached
  bool finished = false;          // the engine's verdict: end token, stop token, length or error
};

}  // namespace sluice
