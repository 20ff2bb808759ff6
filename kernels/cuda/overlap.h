// SPDX-License-Identifier: Apache-2.0
// Which launches start while the one in front still runs (LaunchShape::overlaps), in one place.
#pragma once

#include <cstdint>

namespace sluice::kernels::cuda {

enum class LaunchKind : uint8_t {
  kLinear,  // a layer by wgmma without experts, what puts its x in rows, what folds its runs
  kCopy,    // between device and pinned memory, by threads
  kSampling,
  kRows,       // what works on rows: norms, gates, rope, experts' places, folds of mma.sync
  kAttention,  // with its merges
  kEmbedding,
};

// `rows`: of the launch, in which kinds differ that depend on them. Kernels of all other kinds
// (experts, weights in blocks, layers of floats and by mma.sync) do not wait for the launch in
// front and may not overlap.
//
// Linear layers copy weights, which no launch writes, before they wait, and have one block an SM.
// Row kernels and attention read little before they wait: they gain a launch's latency. On an H200
// a BF16 decode step of Llama 8B's shape took 5.20 ms for one stream where all launches overlapped
// and 5.58 where none did; for 16 and 64 streams 9.3 and 10.6 ms where row kernels alone did and
// 8.93 and 10.22 where none did. That was with earlier linear layers, whose blocks went where there
// was room; one rule for any number of rows has not been timed beside today's. The embedding is a
// step's first launch: as it does not overlap, positions and slots, which copies brought for the
// step, may be read by any launch behind it as early as weights.
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
