// SPDX-License-Identifier: Apache-2.0
// The shared memory of attention_list.cu's blocks, and what its warps share: where a lane is, and
// the product of a lane's rows with 8 columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_list.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {

inline constexpr int kListWarps = kPartitionTiles;  // that multiply, a tile of a partition each
inline constexpr int kListConsumers = 32 * kListWarps;
inline constexpr int kLineBytes = 128;  // a row of what the copy engine swizzles

// Rows are 8 or 16: lane 4 g + q of a warp has rows g and, where kHalves is 2, g + 8.
template <typename Cache, int kDim, int kHalves>
struct ListMemory {
  static constexpr bool kCodes = Cache::kBytes == 1;
  static constexpr int kTileBytes = kDim * kAttentionTile * Cache::kBytes;
  // With a stage for each tile of a partition a warp waits for its own tile alone, whose phase is
  // then the next one. With fewer stages every warp follows every tile: a wait for a phase's parity
  // passes at once where the stage is two phases behind.
  static constexpr bool kOwnStages = kTileBytes <= 16 * 1024;
  static constexpr int kKeyStages = kOwnStages ? kListWarps : 3;
  static constexpr int kValueStages = !kOwnStages ? 3 : kTileBytes <= 8 * 1024 ? 8 : 4;
  static constexpr int kScaleBytes = 512;  // of a tile, each block's at a line of its own
  static constexpr int kRows = 8 * kHalves;
  using ByTile = float[kRows][kListWarps];  // a number for each row and tile of a partition

  alignas(1024) std::byte keys[kKeyStages][kTileBytes];
  alignas(1024) std::byte values[kValueStages][kTileBytes];
  alignas(kLineBytes) std::byte scales[kCodes ? kKeyStages : 1][2][kCodes ? kScaleBytes : 16];
  // Weights as the products with V have A: for each lane the words of 32 keys, or of 16.
  alignas(16) uint32_t weights[kListWarps][kHalves == 1 ? 2 : 4][32][4];
  alignas(16) ByTile tops[2];  // of scores, of this partition and the one before
  alignas(16) ByTile factors;  // what a tile's m makes of what was there before it
  alignas(16) ByTile sums;     // of weights
  gpu::ptx::Mbarrier keys_full[kKeyStages];
  gpu::ptx::Mbarrier keys_empty[kKeyStages];
  gpu::ptx::Mbarrier values_full[kValueStages];
  gpu::ptx::Mbarrier values_empty[kValueStages];
  int32_t blocks[32];  // of the partition whose copies are being asked for
  int32_t starts[kMostListRequests + 1];
};

__device__ __forceinline__ int list_lane() { return static_cast<int>(threadIdx.x % 32); }

__device__ __forceinline__ int list_warp() { return static_cast<int>(threadIdx.x / 32); }

// A lane's place among the 4 lanes of its rows.
__device__ __forceinline__ int list_quad() { return list_lane() % 4; }

__device__ __forceinline__ int list_row(int h) { return list_lane() / 4 + 8 * h; }

// Bytes from one block's scales to the next one's. Not by std::max, whose references to constants a
// device does not have: nvcc says nothing and puts a trap there.
constexpr int32_t scale_stride(int32_t block_size) {
  const int32_t bytes = block_size * int32_t{sizeof(float)};
  return bytes > kLineBytes ? bytes : kLineBytes;
}

// D += A B for 16 columns' words of B, where A has words of the lane's rows: two for each half.
template <typename Cache, int kHalves>
__device__ __forceinline__ void list_multiply(float* d,
                                              const uint32_t* a,
                                              uint32_t b0,
                                              uint32_t b1) {
  if constexpr (kHalves == 1) {
    const uint32_t words[4] = {a[0], 0, a[1], 0};
    Cache::multiply(d, words, b0, b1);
  } else {
    const uint32_t words[4] = {a[0], a[1], a[2], a[3]};
    Cache::multiply(d, words, b0, b1);
  }
}

// The even and the odd codes of a word that ldmatrix brings, as two 16-bit floats each.
template <typename Cache>
__device__ __forceinline__ uint32_t even_of(uint32_t codes) {
  return Cache::widen(codes & kEvenBytes);
}

template <typename Cache>
__device__ __forceinline__ uint32_t odd_of(uint32_t codes) {
  return Cache::widen(codes >> 8 & kEvenBytes);
}

// What a block has at hand of the row block that it is at.
template <int kHalves>
struct ListBlock {
  RowBlock rows;
  KeyRange keys;              // that some row sees
  KeyRange all;               // that all rows see
  KeyRange visible[kHalves];  // to the lane's rows; rows past the last one see what it does
};

template <int kHalves>
__device__ __forceinline__ ListBlock<kHalves> list_block_of(const AttentionWork& work,
                                                            const RowBlock& rows) {
  const int32_t last = rows.num_rows - 1;
  ListBlock<kHalves> block{
      .rows = rows,
      .keys = visible_to_any(work, rows),
      .all = {visible_keys(work, rows, last).begin, visible_keys(work, rows, 0).end},
      .visible = {}};
  for (int h = 0; h < kHalves; ++h) {
    block.visible[h] = visible_keys(work, rows, list_row(h) < last ? list_row(h) : last);
  }
  return block;
}

}  // namespace sluice::kernels::cuda
