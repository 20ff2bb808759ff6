// SPDX-License-Identifier: Apache-2.0
// How long a step will take, learned from how long steps took:
//   ms = a + b * prefill_tokens + c * decode_tokens + d * prefill_pairs + e * decode_pairs,
// all of a to e >= 0, fitted online by exponentially weighted least squares on relative errors,
// solved by projected coordinate descent from the last solution. Costs that recent steps did not
// show stay as they are. Keys are cheaper for the rows of a prompt, which share what they read,
// than for decodes. A single slow step moves the fit by a bounded amount.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

struct StepShape {
  int64_t num_prefill_tokens = 0;
  int64_t num_decode_tokens = 0;
  int64_t num_prefill_pairs = 0;  // (query, key), all rows of prompts
  int64_t num_decode_pairs = 0;

  // Counts `num_tokens` rows that start at position `start`.
  void add(bool decode, int64_t start, int64_t num_tokens) {
    (decode ? num_decode_tokens : num_prefill_tokens) += num_tokens;
    (decode ? num_decode_pairs : num_prefill_pairs) +=
        num_tokens * start + num_tokens * (num_tokens + 1) / 2;
  }
};

class CostModel {
 public:
  CostModel();

  [[nodiscard]] double predict_ms(const StepShape& shape) const;

  // Prompt tokens from position `start` on that may join `shape` before it is predicted to take
  // longer than `target_ms`; 0 when it does already.
  [[nodiscard]] int32_t max_prefill_tokens(const StepShape& shape,
                                           int64_t start,
                                           double target_ms) const;

  // A step of this shape took `measured_ms`; not positive: unknown, ignored.
  void observe(const StepShape& shape, double measured_ms);

 private:
  static constexpr int kNumTerms = 5;
  using Terms = std::array<double, kNumTerms>;
  static Terms terms_of(const StepShape& shape);
  void solve();

  Terms weights_{};                         // ms per scaled term
  std::array<Terms, kNumTerms> moments_{};  // weighted sum of x x^T
  Terms targets_{};                         // weighted sum of x * ms
  uint64_t num_observations_ = 0;
};

}  // namespace sluice
