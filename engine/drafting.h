// SPDX-License-Identifier: Apache-2.0
// Speculation's place in the step loop: which requests draft, when their proposers are asked, and
// what is counted of it. Engine thread only.
//
// Proposers are asked first. A second model drafts for those of whom none of the proposers' tokens
// is expected to be accepted, and needs that no step is in flight, as it computes where steps do.
//
// A step: should_wait() -> offer() -> Scheduler::schedule() -> the step runs -> committed() or
// end() for each of its requests, count() for each that had drafts.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/stats.h"
#include "engine/core/types.h"
#include "engine/draft_model.h"
#include "engine/request.h"
#include "engine/sampling/grammar/grammar.h"
#include "engine/spec/spec_config.h"
#include "engine/spec/speculator.h"
#include "engine/tokenizer/tokenizer.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"

namespace sluice {

class Drafting {
 public:
  // `vocab_size`: that of the model; `model`: one that drafts, or null. It, `kv` and `tokenizer`
  // must outlive this.
  Drafting(const SpecConfig& config,
           int32_t vocab_size,
           const Tokenizer& tokenizer,
           const KvCacheManager& kv,
           DraftModel* model);

  // A request of which nothing is held but what it says, until it decodes.
  void begin(RequestId id, const ValidRequest& request);
  // Before it decodes: what binds its answer, as in BegunRequest.
  void bind(RequestId id,
            std::shared_ptr<const Grammar> grammar,
            std::span<const TokenId> begins_behind);
  void committed(RequestId id, std::span<const TokenId> tokens);
  void end(RequestId id);

  // A step has run and its tokens are committed. A head reads what it leaves in the model, so
  // none may run until the next offer().
  void follow(const SchedulerOutput& decision);

  // Whether the next step should wait for those in flight: a request has drafts there, and would be
  // left out of it; or one of theirs has a draft behind the tokens that it is known to have, so it
  // will hardly be without one behind the next. The proposers are asked for that; the time is
  // counted as in offer(). Where rows may follow drafts it need not, unless a model drafts: guesses
  // then come behind what is in flight, and are wrong where that is.
  bool should_wait(Scheduler& scheduler, DraftStats& stats);

  // Asks the proposers for all requests that will decode. The time is counted in `stats` and noted
  // with the scheduler, whose budget weighs it against what drafts bring.
  void offer(Scheduler& scheduler, DraftStats& stats);

  // A step with drafts of a request has retired and given it `num_tokens` tokens; none: it had
  // ended before, or failed. `ended`: with the last of them, or before.
  static void count(
      DraftSource source, size_t num_drafts, size_t num_tokens, bool ended, DraftStats& stats);

 private:
  // The proposers were asked for the coming step, since `begin`.
  static void count_asking(std::chrono::steady_clock::time_point begin,
                           Scheduler& scheduler,
                           DraftStats& stats);

  // Of one request in the coming step; 0: nothing is drafted.
  [[nodiscard]] int32_t most_tokens(const Scheduler& scheduler) const;

  // Of a request in the step that ran last: its first row and the position of that.
  struct StepRows {
    RequestId id;
    int32_t row = 0;
    int32_t position = 0;
  };

  // What a request says of its drafts, before it decodes.
  struct Wish {
    uint64_t salt = 0;
    std::vector<TokenId> prediction;
    SamplingParams sampling;                 // where a model drafts
    std::shared_ptr<const Grammar> grammar;  // null: none
    std::vector<TokenId> begins_behind;
  };

  void begin_decoding(const Scheduler& scheduler);
  void propose_behind(const Scheduler& scheduler, RequestId id, int32_t most, Draft& draft);
  void ask_model(Scheduler& scheduler, int32_t most);
  void add_task(const Request& request, int32_t max);
  void run_model(Scheduler& scheduler, int32_t depth);

  const SpecConfig config_;
  const KvCacheManager& kv_;
  DraftModel* const model_;
  Speculator speculator_;
  std::unordered_map<RequestId, Wish> wishes_;
  std::unordered_set<RequestId> begun_;
  std::vector<RequestId> ids_;
  std::vector<Draft> drafts_;  // by ids_
  // What the model is asked, and for which of ids_.
  std::vector<DraftTask> tasks_;
  std::vector<size_t> asked_;
  std::vector<Draft> modelled_;
  std::vector<StepRows> followed_;  // of a head
};

}  // namespace sluice
