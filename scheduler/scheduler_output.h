// SPDX-License-Identifier: Apache-2.0
// The whole decision of one step as a value, and its results. Together with what the engine adds
// about newly begun requests (engine/run/step_order.h), it suffices to run the step without access
// to the scheduler, the KV manager or the request table.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/stats.h"
#include "engine/core/types.h"
#include "kvcache/kv_cache_manager.h"

namespace sluice {

// Positions of a request, [begin, end).
struct RowRange {
  int32_t begin = 0;
  int32_t end = 0;

  [[nodiscard]] int32_t size() const { return end - begin; }
  [[nodiscard]] bool empty() const { return begin == end; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

// A request's rows in a step, one per token: known tokens, then drafts (guesses at the tokens that
// follow).
struct ScheduledRequest {
  RequestId id;
  int32_t num_computed_tokens = 0;   // position of the first row
  int32_t num_scheduled_tokens = 0;  // rows, drafts included; >= 1
  int32_t num_draft_tokens = 0;      // the last rows
  // Drafts of the previous step, which has not retired. All positions here assume that they are
  // accepted; each rejected one moves the rows back by one.
  int32_t num_unsure = 0;
  // Accepted drafts of the request's last step, in front of these rows: states take them again.
  int32_t num_replayed = 0;
  DraftSource draft_source = DraftSource::kNgram;  // used only with drafts
  RowRange chosen;  // rows after which a token is chosen: none, or the last known one and drafts
  RowRange scored;  // rows of the prompt that give the log-probability of the prompt's next token
  RowRange embedded;  // rows whose state after the last norm is wanted
  bool ends = false;  // the prompt of a pooled request is computed with these rows
  int32_t slot = 0;  // unique while the request lives; below Scheduler::num_slots()

  [[nodiscard]] int32_t end() const { return num_computed_tokens + num_scheduled_tokens; }
};

struct RequestFailure {
  RequestId id;
  const char* reason;  // static string
};

struct SchedulerOutput {
  uint64_t step_id = 0;
  std::vector<ScheduledRequest> scheduled;  // decodes first, then prefill chunks
  // One token per row, in the order of `scheduled`; kInvalidToken: the token that the previous step
  // chooses after the last known token of that request.
  std::vector<TokenId> token_ids;
  std::vector<uint8_t> draft_bins;      // per draft: its source's confidence bin
  std::vector<TokenId> scored_tokens;  // per scored row: the token that follows it
  // For each request and KV group: its blocks from the first one to that of its last row.
  std::vector<BlockId> blocks;
  // Preempted for recompute; they wait again. Apply before `scheduled`, which may hold them again.
  std::vector<RequestId> preempted;
  // Preempted requests for which there is room again. The caller may bring kept KV back into the
  // prefix cache, and calls resume() in any case, now or later. Until then they hold no blocks.
  std::vector<RequestId> restoring;
  std::vector<RequestFailure> failed;  // can never run (forward progress rule); already removed
  // Nothing can run before blocks come back that others than the scheduler's requests hold:
  // requests that wait for KV, transfers, pins. The caller gives some back, or waits.
  bool is_starved = false;
  std::vector<RequestId> expired;      // had not started at their deadline; already removed
  std::vector<KvBlockCopy> copies;     // made before the step runs, in order
  int32_t total_tokens = 0;
  int32_t num_prefill_tokens = 0;
  double predicted_ms = 0;
  double draft_ms = 0;                  // time that making its drafts took
  double predicted_gain = 1;            // tokens per millisecond, relative to no drafts
  std::optional<DraftsOff> drafts_off;  // set when drafts were offered and none taken
};

// A step's result for a request with chosen rows, in the order of SchedulerOutput::scheduled.
struct StepResult {
  RequestId id;
  // The accepted leading drafts, then the token chosen after them. Empty: the step failed for this
  // request; its KV is not cached.
  std::span<const TokenId> tokens;
  bool finished = false;  // with the last of `tokens`: end token, stop token, length or error
  // Discards all that the request has computed, steps in flight included: it is preempted once they
  // have retired and begins again. `tokens` is then empty and `finished` false.
  bool restarts = false;
};

}  // namespace sluice
