// SPDX-License-Identifier: Apache-2.0
// The whole decision of one step, as a value, and what came back. With what the engine adds of the
// requests that begin (engine/step_order.h) it is all that running the step takes: no scheduler, KV
// manager or table of requests.
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

// A request's rows of a step, one a token: known tokens, then drafts, which are guesses at the
// tokens that follow.
struct ScheduledRequest {
  RequestId id;
  int32_t num_computed_tokens = 0;   // position of the first row
  int32_t num_scheduled_tokens = 0;  // rows, drafts included; >= 1
  int32_t num_draft_tokens = 0;      // the last ones of them
  // Drafts of the step before, which has not retired: every position here is that number or less
  // too high, by as many as are not accepted.
  int32_t num_unsure = 0;
  DraftSource draft_source = DraftSource::kNgram;  // where there are some
  RowRange chosen;  // rows behind which a token is chosen: none, or the last known one and drafts
  RowRange scored;  // rows of the prompt that give the log-probability of the prompt's next token
  RowRange embedded;  // rows whose state behind the last norm is wanted
  int32_t slot = 0;  // its own while it is here, below Scheduler::num_slots()

  [[nodiscard]] int32_t end() const { return num_computed_tokens + num_scheduled_tokens; }
};

struct RequestFailure {
  RequestId id;
  const char* reason;  // static string
};

struct SchedulerOutput {
  uint64_t step_id = 0;
  std::vector<ScheduledRequest> scheduled;  // decodes first, then prefill chunks
  // Of all rows, in the order of `scheduled`; kInvalidToken: what the step before chooses behind
  // the last known token of that request.
  std::vector<TokenId> token_ids;
  std::vector<uint8_t> draft_bins;      // of all drafts: how sure their source is of each
  std::vector<TokenId> scored_tokens;  // of all scored rows: the tokens that follow them
  // Of each request, for each KV group: its blocks from the first one to that of its last row.
  std::vector<BlockId> blocks;
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
  double draft_ms = 0;                  // that making drafts for it took
  double predicted_gain = 1;            // tokens a millisecond, over the step without its drafts
  std::optional<DraftsOff> drafts_off;  // why drafts were offered and none taken
};

// What a step gave a request that had chosen rows, in the order of SchedulerOutput::scheduled.
struct StepResult {
  RequestId id;
  // As many first drafts as were what the model chose in their places, then the token chosen behind
  // them. Empty: the step failed for it; its KV is not cached.
  std::span<const TokenId> tokens;
  bool finished = false;  // with the last of `tokens`: end token, stop token, length or error
  // Nothing that the request has computed counts, nor what steps in flight compute: it is preempted
  // once they have retired, and begins again. No tokens then, and not finished.
  bool restarts = false;
};

}  // namespace sluice
