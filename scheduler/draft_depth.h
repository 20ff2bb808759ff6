// SPDX-License-Identifier: Apache-2.0
// Chooses how many tokens a draft model is asked for. Each token costs one pass of that model
// before the step, whether the step takes it or not, so the choice is the depth at which tokens
// come fastest, given acceptance at each depth, the time of passes, and the time of steps
// (RowTimes).
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
  // Learns that drafting `depth` tokens, at least 1, for `num_requests` requests took `ms`.
  void observe_passes(int32_t num_requests, int32_t depth, double ms);

  // Learns a judged draft's length and how many of its leading tokens were accepted.
  void observe_draft(size_t num_tokens, size_t num_accepted);

  // Returns a depth from 1 to `most` for each request of a step that is `plain` without drafts.
  // Both unmeasured choices get tried: an unmeasured pass is assumed cheap, and a depth not judged
  // lately is assumed as good as the one before it (the first depth: accepted half of the time).
  [[nodiscard]] int32_t choose(const CostModel& cost,
                               const RowTimes& times,
                               const StepShape& plain,
                               int32_t most) const;

 private:
  static constexpr size_t kNumSamples = 7;

  // The milliseconds of the latest passes with a given number of requests.
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
