// SPDX-License-Identifier: Apache-2.0
// Predicts how long a step will take, learned from measured steps:
//   ms = a + b * prefill_tokens + c * decode_tokens + d * prefill_pairs + e * decode_pairs,
// where a to e are >= 0. The fit is online: exponentially weighted least squares on relative
// errors, solved by projected coordinate descent from the last solution. Coefficients that recent
// steps did not exercise keep their values. Keys cost less for the rows of a prompt, which share
// what they read, than for decodes. A single slow step moves the fit by a bounded amount.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

struct StepShape {
  int64_t num_prefill_tokens = 0;
  int64_t num_decode_tokens = 0;
  int64_t num_prefill_pairs = 0;  // (query, key) pairs of all prompt rows
  int64_t num_decode_pairs = 0;

  // Counts `num_tokens` rows that start at position `start`.
  void add(bool decode, int64_t start, int64_t num_tokens) {
    (decode ? num_decode_tokens : num_prefill_tokens) += num_tokens;
    (decode ? num_decode_pairs : num_prefill_pairs) +=
        num_tokens * start + num_tokens * (num_tokens + 1) / 2;
  }

  [[nodiscard]] int64_t num_rows() const { return num_prefill_tokens + num_decode_tokens; }
};

class CostModel {
 public:
  CostModel();

  [[nodiscard]] double predict_ms(const StepShape& shape) const;

  // Returns how many prompt tokens from position `start` on may join `shape` before the step is
  // predicted to take longer than `target_ms`; 0 when it already does.
  [[nodiscard]] int32_t max_prefill_tokens(const StepShape& shape,
                                           int64_t start,
                                           double target_ms) const;

  // Learns that a step of this shape took `measured_ms`; values <= 0 mean unknown and are ignored.
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
