// SPDX-License-Identifier: Apache-2.0
#include "engine/loop/holders.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/core/handoff_fallback.h"
#include "engine/sampling/grammar/grammar_compiler.h"

namespace sluice {
namespace {

class GrammarHolder final : public Holder {
 public:
  explicit GrammarHolder(RequestTable& requests) : requests_(requests) {}

  bool hold(RequestState& state, Clock::time_point) override {
    if (state.pending_grammar == nullptr) return false;
    if (state.pending_grammar->is_ready() && state.pending_grammar->result()) {
      state.set_grammar(*state.pending_grammar->result());
      return false;
    }
    held_.push_back(state.record->id);
    return true;
  }

  void advance(Clock::time_point, std::vector<Released>& released) override {
    std::erase_if(held_, [&](RequestId id) {
      RequestState* const state = requests_.find(id);
      if (state == nullptr) return true;
      if (!state->pending_grammar->is_ready()) return false;
      const auto& compiled = state->pending_grammar->result();
      Released& one = released.emplace_back(id);
      if (compiled) {
        state->set_grammar(*compiled);
      } else {
        one.ending = ending_of(compiled.error(), state->grammar_spec->param);
      }
      return true;
    });
  }

  bool abort(RequestId id, Clock::time_point) override { return std::erase(held_, id) > 0; }

 private:
  static Ending ending_of(const Error& error, const std::string& param) {
    return {.reason = FinishReason::kError,
            .error = param.empty() ? error.message : param + ": " + error.message,
            .code = error.code,
            .retry_after_s = error.retry_after_s,
            .param = param};
  }

  RequestTable& requests_;
  std::vector<RequestId> held_;
};

class HandoffHolder final : public Holder {
 public:
  HandoffHolder(Handoff& handoff,
                KvFailurePolicy policy,
                const std::atomic<bool>& is_draining,
                const Scheduler& scheduler,
                RequestTable& requests)
      : handoff_(handoff),
        policy_(policy),
        is_draining_(is_draining),
        scheduler_(scheduler),
        requests_(requests) {}

  bool hold(RequestState& state, Clock::time_point now) override {
    if (!state.handoff) return false;
    state.record->checks_first_row = true;
    return handoff_.hold(*state.request, *state.handoff, now, state.record->trace);
  }

  void advance(Clock::time_point now, std::vector<Released>& released) override {
    if (is_draining_) handoff_.drain(now);
    ready_.clear();
    const bool has_preempted = scheduler_.num_waiting() > scheduler_.num_unstarted();
    handoff_.advance(now,
                     {.is_idle = !scheduler_.has_work(),
                      .num_running = scheduler_.num_running(),
                      .has_preempted = has_preempted},
                     ready_);
    for (const DecodeSide::Released& ready : ready_) {
      Released& one = released.emplace_back(ready.id);
      if (ready.fallback && fails_after(*ready.fallback)) {
        one.ending = ending_of(*ready.fallback);
        continue;
      }
      RequestState& state = *requests_.find(ready.id);
      state.request->is_fallback = ready.fallback.has_value();
      state.request->num_landed_tokens = ready.num_landed_tokens;
      if (ready.seed) state.record->sampling.seed = *ready.seed;
    }
  }

  bool abort(RequestId id, Clock::time_point now) override { return handoff_.abort(id, now); }

  void end(RequestId id, Clock::time_point now) override { handoff_.end(id, now); }

  [[nodiscard]] const char* status_of(RequestId id) const override {
    return handoff_.status_of(id);
  }

 private:
  // A worker that ends computes what it has accepted; the scheduler ends what is late.
  [[nodiscard]] bool fails_after(HandoffFallback reason) const {
    return policy_ == KvFailurePolicy::kFail && reason != HandoffFallback::kDraining &&
           reason != HandoffFallback::kDeadline;
  }

  static Ending ending_of(HandoffFallback reason) {
    return {.reason = FinishReason::kError,
            .error = "The KV of the prompt did not come from its prefill worker (" +
                     std::string(to_string(reason)) + ").",
            .code = ErrorCode::kUnavailable,
            .retry_after_s = 1};
  }

  Handoff& handoff_;
  const KvFailurePolicy policy_;
  const std::atomic<bool>& is_draining_;
  const Scheduler& scheduler_;
  RequestTable& requests_;
  std::vector<DecodeSide::Released> ready_;  // scratch
};

class StoreHolder final : public Holder {
 public:
  StoreHolder(PrefixStore& store, Scheduler& scheduler) : store_(store), scheduler_(scheduler) {}

  bool hold(RequestState& state, Clock::time_point now) override {
    return store_.hold(*state.request, now);
  }

  void advance(Clock::time_point now, std::vector<Released>& released) override {
    ready_.clear();
    resumed_.clear();
    store_.advance(now, ready_, resumed_);
    for (const RequestId id : ready_) released.push_back({.id = id});
    for (const RequestId id : resumed_) scheduler_.resume(id);
  }

  bool abort(RequestId id, Clock::time_point) override { return store_.abort(id); }

  void end(RequestId id, Clock::time_point) override { store_.forget(id); }

 private:
  PrefixStore& store_;
  Scheduler& scheduler_;
  std::vector<RequestId> ready_;    // scratch
  std::vector<RequestId> resumed_;  // scratch: preempted requests
};

}  // namespace

std::unique_ptr<Holder> make_grammar_holder(RequestTable& requests) {
  return std::make_unique<GrammarHolder>(requests);
}

std::unique_ptr<Holder> make_handoff_holder(Handoff& handoff,
                                            KvFailurePolicy policy,
                                            const std::atomic<bool>& is_draining,
                                            const Scheduler& scheduler,
                                            RequestTable& requests) {
  return std::make_unique<HandoffHolder>(handoff, policy, is_draining, scheduler, requests);
}

std::unique_ptr<Holder> make_store_holder(PrefixStore& store, Scheduler& scheduler) {
  return std::make_unique<StoreHolder>(store, scheduler);
}

}  // namespace sluice
