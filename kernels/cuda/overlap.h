// SPDX-License-Identifier: Apache-2.0
// Decides, for all launches, which start while the one in front still runs (LaunchShape::overlaps).
#pragma once

#include <cstdint>

namespace sluice::kernels::cuda {

enum class LaunchKind : uint8_t {
  kLinear,  // a layer by wgmma without experts, packing of its x, the fold of its runs
  kCopy,    // between device and pinned memory, by threads
  kSampling,
  kRows,       // row-wise work: norms, gates, rope, experts' places, folds of mma.sync
  kAttention,  // with its merges
  kEmbedding,
};

// `rows`: the launch's, for kinds that depend on it. Kernels of all other kinds (experts, weights
// in blocks, floats, mma.sync) do not wait for the launch in front and may not overlap.
//
// Linear layers copy weights, which no launch writes, before they wait, and have one block an SM.
// Row kernels and attention read little before they wait: they gain a launch's latency. On an H200
// a BF16 decode step of Llama 8B's shape took 5.20 ms for one stream with all launches overlapping
// and 5.58 with none; for 16 and 64 streams 9.3 and 10.6 ms with row kernels alone overlapping and
// 8.93 and 10.22 with none. That was with earlier linear layers, whose blocks went where there was
// room; one rule for all numbers of rows has not been timed with today's. The embedding is a step's
// first launch. Since it does not overlap, later launches may read positions and slots, which
// copies brought for the step, as early as weights.
constexpr bool overlaps(LaunchKind kind, int64_t rows) {
  constexpr int64_t kFewRows = 8;
  switch (kind) {
    case LaunchKind::kLinear:
    case LaunchKind::kCopy:
    case LaunchKind::kSampling:
      return true;
    case LaunchKind::kRows:
    case LaunchKind::kAttention:
      return rows <= kFewRows;
    case LaunchKind::kEmbedding:
      break;
  }
  return false;
}

}  // namespace sluice::kernels::cuda
