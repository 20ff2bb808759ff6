// SPDX-License-Identifier: Apache-2.0
// What admission has to know of the future: how much more a request will probably generate, and how
// many KV blocks those that run will hold at the worst moment to come. Answers end one after the
// other, so that moment needs far less than the sum of their ends (Gong et al., "Past-Future
// Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025). Nothing is allocated but in the
// constructor.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace sluice {

// Lengths of the answers of late, in buckets of a quarter of an octave; older ones count less.
class AnswerLengths {
 public:
  void observe(int32_t num_tokens);

  // Tokens that an answer of `num_generated` so far will probably still get: what longer ones of
  // late got on average. 0 while nothing is known; an eighth of its length when none was longer.
  [[nodiscard]] int32_t expected_more(int32_t num_generated) const;

 private:
  static constexpr int kNumBuckets = 88;
  static int bucket_of(int32_t num_tokens);

  std::array<double, kNumBuckets> weights_{};
  std::array<double, kNumBuckets> tokens_{};  // weight * length
  // Of this bucket and all after it.
  std::array<double, kNumBuckets + 1> weights_from_{};
  std::array<double, kNumBuckets + 1> tokens_from_{};
};

// The blocks held at each moment until all have ended, if each generates a token per step.
class KvForecast {
 public:
  explicit KvForecast(int32_t max_requests);

  void clear();

  // A request that has `num_tokens` tokens and will get `num_more`.
  void add(int32_t num_tokens, int32_t num_more);

  // Never less than peak_with(), and cheap: all at their ends.
  [[nodiscard]] int64_t sum_with(int32_t num_tokens, int32_t num_more, int32_t block_size) const;

  // The most blocks of `block_size` tokens held at any moment, when one more request joins.
  [[nodiscard]] int64_t peak_with(int32_t num_tokens, int32_t num_more, int32_t block_size);

 private:
  struct Life {
    int32_t num_tokens = 0;
    int32_t num_more = 0;
  };

  static bool ends_later(const Life& a, const Life& b) { return a.num_more > b.num_more; }

  std::vector<Life> lives_;  // who ends last comes first
  int64_t sum_ = 0;          // of tokens at their ends
  bool sorted_ = false;
};

}  // namespace sluice
