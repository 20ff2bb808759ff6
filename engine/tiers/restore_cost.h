// SPDX-License-Identifier: Apache-2.0
// Whether reading KV back is expected to take less time than computing it: a fixed cost and a rate
// for each tier, learned from what was measured. What is not known yet counts as free, so that it
// is tried; and what is not chosen seems cheaper each time, so that a tier which was slow once, or
// long ago, is tried again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

class RestoreCost {
 public:
  explicit RestoreCost(size_t num_tiers) : seconds_per_block_(num_tiers, 0) {}

  // One step that was mostly prefill, and one block read.
  void observe_compute(int64_t num_tokens, double seconds);
  void observe_read(size_t tier, double seconds);

  // What computing so many tokens is expected to take; 0: not known.
  [[nodiscard]] double compute_seconds(int64_t num_tokens) const {
    return static_cast<double>(num_tokens) * seconds_per_token_;
  }

  // Of `num_blocks[tier]` blocks from each tier, together `num_tokens` tokens.
  [[nodiscard]] bool choose_read(std::span<const int64_t> num_blocks, int64_t num_tokens);

 private:
  double seconds_per_token_ = 0;           // 0: not known
  std::vector<double> seconds_per_block_;  // by tier
};

}  // namespace sluice
