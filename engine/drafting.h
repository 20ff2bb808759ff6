// SPDX-License-Identifier: Apache-2.0
// Speculation's place in the step loop: which requests draft, when their proposers are asked, and
// what is counted of it. Engine thread only.
//
// A step: should_wait() -> offer() -> Scheduler::schedule() -> the step runs -> committed() or
// end() for each of its requests, count() for each that had drafts.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/stats.h"
#include "engine/core/types.h"
#include "engine/request.h"
#include "engine/spec/spec_config.h"
#include "engine/spec/speculator.h"
#include "scheduler/scheduler.h"

namespace sluice {

class Drafting {
 public:
  // `vocab_size`: that of the model.
  Drafting(const SpecConfig& config, int32_t vocab_size);

  // Before the request is given to the scheduler.
  void begin(RequestId id, const ValidRequest& request);
  void committed(RequestId id, std::span<const TokenId> tokens);
  void end(RequestId id);

  // Whether the next step should wait for those in flight: a request of theirs has a draft behind
  // the tokens that it is known to have, so it will hardly be without one behind the next.
  bool should_wait(const Scheduler& scheduler);

  // Asks the proposers for all requests that will decode. The time is counted in `stats`.
  void offer(Scheduler& scheduler, DraftStats& stats);

  // A step with drafts of a request has retired and given it `num_tokens` tokens; none: it had
  // ended before, or failed. `ended`: with the last of them, or before.
  static void count(DraftSource source,
                    size_t num_drafts,
                    size_t num_tokens,
                    bool ended,
                    DraftStats& stats);

 private:
  // Of one request in the coming step; 0: nothing is drafted.
  [[nodiscard]] int32_t most_tokens(const Scheduler& scheduler) const;

  const SpecConfig config_;
  Speculator speculator_;
  std::unordered_set<RequestId> begun_;
  std::vector<RequestId> ids_;
  Draft draft_;
};

}  // namespace sluice
