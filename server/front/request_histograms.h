// SPDX-License-Identifier: Apache-2.0
// Histograms that a front end counts at a request's end, under vLLM's bounds. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/core/engine_state.h"
#include "engine/core/stats.h"

namespace sluice {

inline constexpr std::array<double, 5> kChoiceBounds = {1, 2, 5, 10, 20};

// A histogram with any number of writers.
template <size_t kNumBounds>
class SharedHistogram {
 public:
  void observe(const std::array<double, kNumBounds>& bounds, double value) {
    size_t i = 0;
    while (i < kNumBounds && value > bounds[i]) ++i;
    counts_[i].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  // Counts that are added meanwhile may be in it and missing in its sum.
  [[nodiscard]] HistogramData<kNumBounds> read() const {
    HistogramData<kNumBounds> data;
    for (size_t i = 0; i <= kNumBounds; ++i) {
      data.counts[i] = counts_[i].load(std::memory_order_relaxed);
    }
    data.sum = sum_.load(std::memory_order_relaxed);
    return data;
  }

 private:
  std::array<std::atomic<uint64_t>, kNumBounds + 1> counts_{};
  std::atomic<double> sum_{0};
};

struct RequestHistograms {
  // Counts a choice that has ended, as far as it came.
  void count_choice(int32_t limit, int64_t num_tokens, const RequestTimings& timings) {
    max_tokens.observe(kLengthBounds, limit);
    if (num_tokens == 0) return;
    inference_seconds.observe(kRequestBounds, 1e-3 * (timings.prefill_ms + timings.decode_ms));
    if (num_tokens < 2) return;
    const auto num_gaps = static_cast<double>(num_tokens - 1);
    seconds_per_token.observe(kInterTokenBounds, 1e-3 * timings.decode_ms / num_gaps);
  }

  // For each request.
  SharedHistogram<5> num_choices;      // kChoiceBounds
  SharedHistogram<20> longest_choice;  // tokens, kLengthBounds
  // For each choice.
  SharedHistogram<20> max_tokens;         // kLengthBounds
  SharedHistogram<21> inference_seconds;  // kRequestBounds; from the first scheduling to the end
  SharedHistogram<19> seconds_per_token;  // kInterTokenBounds; of those after the first
};

}  // namespace sluice
