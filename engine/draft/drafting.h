// SPDX-License-Identifier: Apache-2.0
// Speculation in the step loop: decides which requests draft and when their proposers are asked,
// and keeps the counts. Engine thread only.
//
// Proposers are asked first. A second model drafts for requests whose proposals are expected to
// fail entirely; it needs that no step is in flight, because it computes where steps do.
//
// Call order per step: should_wait() -> offer() -> Scheduler::schedule() -> the step runs ->
// count() for each of its requests that had drafts -> Scheduler::update(). end() for each that has
// ended, at any time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/stats.h"
#include "engine/core/types.h"
#include "engine/draft/draft_model.h"
#include "engine/sampling/request_record.h"
#include "engine/spec/spec_config.h"
#include "engine/spec/speculator.h"
#include "engine/tokenizer/tokenizer.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"

namespace sluice {

class Drafting {
 public:
  // `vocab_size`: the served model's. `model`: a draft model or null. `model`, `kv` and `tokenizer`
  // must outlive this object.
  Drafting(const SpecConfig& config,
           int32_t vocab_size,
           const Tokenizer& tokenizer,
           const KvCacheManager& kv,
           DraftModel* model);

  // Registers a request that the scheduler has; its proposers begin when it decodes.
  void begin(std::shared_ptr<const RequestRecord> request);
  void end(RequestId id);

  // Called when a step has run and its tokens are committed. A head reads the states that the step
  // left in the model, so no step may run until the next offer().
  void follow(const SchedulerOutput& decision);

  // Whether the next step should wait for those in flight: a request has drafts in flight and would
  // be left out, or has a proposal after its known tokens, so that it will probably have one after
  // the next token too. The time that the proposers take for this is counted as in offer(). Where
  // rows may follow drafts, only a draft model needs the wait: other guesses continue after the
  // drafts in flight, and fail where those fail. A head is asked after every step about all its
  // requests that have begun, also those that compute a prompt again. Disjoint steps need no wait:
  // nothing of a request that decodes next is in flight.
  bool should_wait(Scheduler& scheduler, DraftStats& stats);

  // Asks the proposers for all requests that will decode. The time is counted in `stats` and
  // reported to the scheduler, whose budget weighs it against the gain.
  void offer(Scheduler& scheduler, DraftStats& stats);

  // Counts a retired step with drafts of a request that got `num_tokens` tokens from it; 0: it had
  // ended before, or failed. `ended`: with the last of these tokens, or before.
  static void count(
      DraftSource source, size_t num_drafts, size_t num_tokens, bool ended, DraftStats& stats);

 private:
  // Counts the time since `begin`, spent asking proposers for the coming step.
  static void count_asking(std::chrono::steady_clock::time_point begin,
                           Scheduler& scheduler,
                           DraftStats& stats);

  // The most drafts of one request in the coming step; 0: no drafts.
  [[nodiscard]] int32_t most_tokens(const Scheduler& scheduler) const;

  // A request in the latest step: its first row and that row's position.
  struct StepRows {
    RequestId id;
    int32_t row = 0;
    int32_t position = 0;
  };

  [[nodiscard]] bool has_rows_for_head(const Scheduler& scheduler) const;
  void begin_decoding();
  void propose_behind(const Scheduler& scheduler, RequestId id, int32_t most, Draft& draft);
  void ask_model(Scheduler& scheduler, int32_t most);
  void add_task(const Request& request, int32_t max);
  void run_model(Scheduler& scheduler, int32_t depth);

  const SpecConfig config_;
  const KvCacheManager& kv_;
  DraftModel* const model_;
  Speculator speculator_;
  // Requests that do not decode yet, and those that do.
  std::unordered_map<RequestId, std::shared_ptr<const RequestRecord>> waiting_;
  std::unordered_set<RequestId> begun_;
  std::vector<RequestId> ids_;
  std::vector<Draft> drafts_;  // by ids_
  // The draft model's tasks, and their indices in ids_.
  std::vector<DraftTask> tasks_;
  std::vector<size_t> asked_;
  std::vector<Draft> modelled_;
  std::vector<StepRows> followed_;  // for a head
};

}  // namespace sluice
