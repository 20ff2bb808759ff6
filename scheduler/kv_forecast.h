// SPDX-License-Identifier: Apache-2.0
// Forecasts for admission: how much more a request will probably generate, and how many KV blocks
// the running requests will hold at the worst future moment. Answers end one after the other, so
// that moment needs far less than the sum of their final sizes (Gong et al., "Past-Future Scheduler
// for LLM Serving under SLA Guarantees", ASPLOS 2025). Only the constructor allocates.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace sluice {

// Lengths of recent answers, in buckets of a quarter octave; older answers count less.
class AnswerLengths {
 public:
  void observe(int32_t num_tokens);

  // Returns the average remainder of recent answers longer than `num_generated`: 0 while nothing is
  // known; `num_generated` / 8 when no recent answer was longer.
  [[nodiscard]] int32_t expected_more(int32_t num_generated) const;

 private:
  static constexpr int kNumBuckets = 88;
  static int bucket_of(int32_t num_tokens);

  std::array<double, kNumBuckets> weights_{};
  std::array<double, kNumBuckets> tokens_{};  // weight * length
  // Suffix sums: this bucket and all after it.
  std::array<double, kNumBuckets + 1> weights_from_{};
  std::array<double, kNumBuckets + 1> tokens_from_{};
};

// The blocks held at each moment until all requests have ended, one generated token per step.
class KvForecast {
 public:
  explicit KvForecast(int32_t max_requests);

  void clear();

  // Adds a request that has `num_tokens` tokens and will get `num_more`.
  void add(int32_t num_tokens, int32_t num_more);

  // A cheap upper bound of peak_with(): every request at its final size.
  [[nodiscard]] int64_t sum_with(int32_t num_tokens, int32_t num_more, int32_t block_size) const;

  // Returns the most blocks of `block_size` tokens held at any moment, when one more request joins.
  [[nodiscard]] int64_t peak_with(int32_t num_tokens, int32_t num_more, int32_t block_size);

 private:
  struct Life {
    int32_t num_tokens = 0;
    int32_t num_more = 0;
  };

  static bool ends_later(const Life& a, const Life& b) { return a.num_more > b.num_more; }

  std::vector<Life> lives_;  // sorted: the last to end comes first
  int64_t sum_ = 0;          // total of final sizes, in tokens
  bool sorted_ = false;
};

}  // namespace sluice
