// SPDX-License-Identifier: Apache-2.0
// How many tokens a model is asked to draft: each takes one of its passes before the step, whether
// the step takes it or not. As many as make tokens come fastest, by how often drafts were accepted
// at each depth, by the time of passes, and by the time of steps (RowTimes).
//
// Owned by SpeculationBudget, on its thread; reads no clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/core/draft.h"
#include "scheduler/cost_model.h"
#include "scheduler/row_times.h"

namespace sluice {

class DraftDepth {
 public:
  // Drafts of `depth` tokens, at least 1, for `num_requests` took `ms`.
  void observe_passes(int32_t num_requests, int32_t depth, double ms);

  // Of a draft of a model that was in a step, all tokens and the first ones that were right.
  void observe_draft(size_t num_tokens, size_t num_accepted);

  // From 1 to `most`, for each request of a step that is `plain` without drafts. A pass
  // that was not measured seems cheap, and a depth that was not judged lately is right as often as
  // the one before it, the first one half of the time, so that both are tried.
  [[nodiscard]] int32_t choose(const CostModel& cost,
                               const RowTimes& times,
                               const StepShape& plain,
                               int32_t most) const;

 private:
  static constexpr size_t kNumSamples = 7;

  // Milliseconds of a pass with so many requests, the latest ones.
  struct Passes {
    std::array<double, kNumSamples> ms{};
    uint32_t count = 0;
  };

  struct Counter {
    double accepted = 0;
    double judged = 0;
  };

  [[nodiscard]] double pass_ms(int64_t num_requests) const;

  std::array<Passes, RowTimes::kNumBuckets> passes_;  // by RowTimes::bucket_of(requests)
  std::array<Counter, kMaxDraftTokens> counters_;     // by depth
};

}  // namespace sluice
