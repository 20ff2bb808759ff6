// SPDX-License-Identifier: Apache-2.0
// Decides whether reading KV is expected to be faster than computing it: a fixed cost and a rate
// per tier, learned from measurements. Unknown costs count as zero, so that a tier is tried; and a
// tier that is not chosen seems cheaper each time, so that one which was slow once, or long ago, is
// tried again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

class RestoreCost {
 public:
  explicit RestoreCost(size_t num_tiers) : seconds_per_block_(num_tiers, 0) {}

  // Learn from one step that was mostly prefill, and from one block read.
  void observe_compute(int64_t num_tokens, double seconds);
  void observe_read(size_t tier, double seconds);

  // Expected seconds of computing `num_tokens` tokens; 0: not known.
  [[nodiscard]] double compute_seconds(int64_t num_tokens) const {
    return static_cast<double>(num_tokens) * seconds_per_token_;
  }

  // Decides on reading `num_blocks[tier]` blocks from each tier, `num_tokens` tokens in all.
  [[nodiscard]] bool choose_read(std::span<const int64_t> num_blocks, int64_t num_tokens);

 private:
  double seconds_per_token_ = 0;           // 0: not known
  std::vector<double> seconds_per_block_;  // by tier
};

}  // namespace sluice
