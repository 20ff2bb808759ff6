// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/restore_cost.h"

namespace sluice {
namespace {

constexpr double kShare = 0.1;   // weight of the latest measurement in the mean
constexpr double kDoubt = 0.99;  // factor per choice against reading; halves in 69 times
// Two hand-overs between threads, and the rest of the step that a request then misses.
constexpr double kFixedSeconds = 1e-3;

void learn(double& mean, double value) {
  mean = mean == 0 ? value : mean + kShare * (value - mean);
}

}  // namespace

void RestoreCost::observe_compute(int64_t num_tokens, double seconds) {
  if (num_tokens <= 0 || seconds <= 0) return;
  learn(seconds_per_token_, seconds / static_cast<double>(num_tokens));
}

void RestoreCost::observe_read(size_t tier, double seconds) {
  if (seconds > 0) learn(seconds_per_block_[tier], seconds);
}

bool RestoreCost::choose_read(std::span<const int64_t> num_blocks, int64_t num_tokens) {
  if (seconds_per_token_ == 0) return true;
  bool is_known = true;
  double seconds = kFixedSeconds;
  for (size_t tier = 0; tier < num_blocks.size(); ++tier) {
    seconds += static_cast<double>(num_blocks[tier]) * seconds_per_block_[tier];
    is_known = is_known && (num_blocks[tier] == 0 || seconds_per_block_[tier] > 0);
  }
  if (!is_known || seconds < compute_seconds(num_tokens)) return true;
  for (size_t tier = 0; tier < num_blocks.size(); ++tier) {
    if (num_blocks[tier] > 0) seconds_per_block_[tier] *= kDoubt;
  }
  return false;
}

}  // namespace sluice
