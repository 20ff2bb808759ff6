// SPDX-License-Identifier: Apache-2.0
#include "scheduler/draft_depth.h"

#include <algorithm>
#include <cstddef>

#include "engine/core/status.h"

namespace sluice {
namespace {

constexpr double kMemory = 500;  // drafts whose acceptance counts
// Weight, in judged tokens, of the prior: the acceptance of the previous depth (a half for the
// first depth).
constexpr double kPriorWeight = 4;

}  // namespace

void DraftDepth::observe_passes(int32_t num_requests, int32_t depth, double ms) {
  CHECK_GE(depth, 1);
  Passes& passes = passes_[RowTimes::bucket_of(num_requests)];
  passes.ms[passes.count++ % kNumSamples] = ms / depth;
}

// Depths that the draft did not reach are gradually forgotten, so that a depth that was once bad is
// tried again; a depth that is not asked for would otherwise never be judged anew.
void DraftDepth::observe_draft(size_t num_tokens, size_t num_accepted) {
  constexpr double kKept = 1 - 1 / kMemory;
  const size_t num_judged = std::min({num_tokens, num_accepted + 1, counters_.size()});
  for (size_t i = 0; i < counters_.size(); ++i) {
    Counter& counter = counters_[i];
    const bool is_judged = i < num_judged;
    const double keep = is_judged && counter.judged < kMemory ? 1 : kKept;
    counter.accepted = keep * counter.accepted + (i < num_accepted && is_judged ? 1 : 0);
    counter.judged = keep * counter.judged + (is_judged ? 1 : 0);
  }
}

// The median of the latest passes with this number of requests or the nearest measured one. The
// median ignores outliers such as the first pass over a prompt.
double DraftDepth::pass_ms(int64_t num_requests) const {
  const size_t own = RowTimes::bucket_of(num_requests);
  for (size_t away = 0; away < passes_.size(); ++away) {
    for (const size_t bucket : {own - std::min(own, away), own + away}) {
      if (bucket >= passes_.size() || passes_[bucket].count == 0) continue;
      std::array<double, kNumSamples> sorted = passes_[bucket].ms;
      const size_t count = std::min<size_t>(passes_[bucket].count, kNumSamples);
      const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(count / 2);
      std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(count));
      return *middle;
    }
  }
  return 0;
}

int32_t DraftDepth::choose(const CostModel& cost,
                           const RowTimes& times,
                           const StepShape& plain,
                           int32_t most) const {
  const int64_t num_requests = plain.num_decode_tokens;
  if (num_requests == 0) return most;
  std::array<StepShape, RowTimes::kMaxShapes> shapes;
  std::array<double, RowTimes::kMaxShapes> ms;
  const size_t count = std::min(static_cast<size_t>(most), RowTimes::kMaxShapes);
  const int64_t position = plain.num_decode_pairs / num_requests;
  for (size_t k = 0; k < count; ++k) {
    shapes[k] = plain;
    shapes[k].add(/*decode=*/true, position, num_requests * static_cast<int64_t>(k + 1));
  }
  times.predict(cost, {shapes.data(), count}, {ms.data(), count});
  const double pass = pass_ms(num_requests);
  double acceptance = 0.5;
  double product = 1;
  double tokens = 1;
  double best_rate = 0;
  int32_t best = 1;
  for (size_t k = 0; k < count; ++k) {
    acceptance =
        (counters_[k].accepted + kPriorWeight * acceptance) / (counters_[k].judged + kPriorWeight);
    product *= acceptance;
    tokens += product;
    const auto depth = static_cast<int32_t>(k) + 1;
    const double rate = tokens / (ms[k] + pass * depth);
    if (rate > best_rate) {
      best_rate = rate;
      best = depth;
    }
  }
  return best;
}

}  // namespace sluice
