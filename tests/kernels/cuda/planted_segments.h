// SPDX-License-Identifier: Apache-2.0
// The linear layer of kernels/cuda/gemm_split.cu in small, with bugs that can be switched on. It
// folds 8 segments of K, each a chunk of a ring.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/tensor_map.h"
#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {

struct SegmentsShape {
  static constexpr int kTileOutputs = 64;
  static constexpr int kOutputs = 136;  // the last tile is not full
  static constexpr int kTiles = 3;
  static constexpr int kTokens = 8;
  static constexpr int kSegments = 8;
  static constexpr int kGroups = 14;  // groups of 32; one or two a segment, the last not full
  static constexpr int kK = 440;

  static constexpr int first_group(int segment) { return segment * kGroups / kSegments; }
  static constexpr int first_column(int segment) { return first_group(segment) * 32; }
  static constexpr int num_groups(int segment) {
    return first_group(segment + 1) - first_group(segment);
  }
};

// Returns a map of bf16 [rows][kK], in boxes of a chunk of `box` rows.
inline gpu::TensorMap segments_map(const std::vector<uint16_t>& data, int rows, int box) {
  return gpu::make_tensor_map({.data = data.data(),
                               .element_bytes = 2,
                               .rank = 2,
                               .sizes = {SegmentsShape::kK, rows},
                               .strides = {0, int64_t{SegmentsShape::kK} * 2},
                               .box = {64, box},
                               .swizzle = gpu::Swizzle::k128});
}

// The segments of all tiles of two layers in runs of equal length, a block each. The last run to
// arrive with its part of a tile that runs cut joins the tile's subtrees.
enum class RunsBug : uint8_t {
  kNone,
  kRunsOverlap,
  kFourOfTheLane,
  kReleaseBeforeWait,
  kRingRestarts,
  kOneCopier,
  kEndWithoutWait,
  kStoreBeforeWait,
  kNoSyncBeforeArrival,
  kNoFenceBeforeArrival,
  kNoFenceBehindArrival,
  kNoSyncBehindArrival,
  kJoinedByTheFirst,
  kJoinedByAll,
};

// Returns out[token][output] of bf16 x [kTokens][kK] and w [kOutputs][kK].
std::vector<float> run_runs(RunsBug bug,
                            const std::vector<uint16_t>& x,
                            const std::vector<uint16_t>& w);

}  // namespace sluice::kernels::test
