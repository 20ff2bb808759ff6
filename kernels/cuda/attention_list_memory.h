// SPDX-License-Identifier: Apache-2.0
// The shared memory of attention_list.cu's blocks, and functions that its warps share: a lane's
// place, and the product of a lane's rows with 8 columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_list_work.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {

inline constexpr int kListWarps = kPartitionTiles;  // that multiply, one per tile of a partition
inline constexpr int kListConsumers = 32 * kListWarps;
inline constexpr int kLineBytes = 128;  // a swizzled row of the copy engine

// Rows are 8 or 16: lane 4 g + q of a warp has row g and, with kHalves 2, row g + 8.
template <typename Cache, int kDim, int kHalves>
struct ListMemory {
  static constexpr bool kCodes = Cache::kBytes == 1;
  static constexpr int kTileBytes = kDim * kAttentionTile * Cache::kBytes;
  // With a stage for each tile of a partition, a warp waits for its own tile alone, whose phase is
  // then the next one. With fewer stages every warp follows every tile: a wait for a phase's parity
  // passes at once when the stage lags by two phases.
  static constexpr bool kOwnStages = kTileBytes <= 16 * 1024;
  static constexpr int kKeyStages = kOwnStages ? kListWarps : 3;
  static constexpr int kValueStages = !kOwnStages ? 3 : kTileBytes <= 8 * 1024 ? 8 : 4;
  static constexpr int kScaleBytes = 512;  // a tile's; each block's at its own line
  static constexpr int kRows = 8 * kHalves;
  using ByTile = float[kRows][kListWarps];  // a number for each row and tile of a partition

  alignas(1024) std::byte keys[kKeyStages][kTileBytes];
  alignas(1024) std::byte values[kValueStages][kTileBytes];
  alignas(kLineBytes) std::byte scales[kCodes ? kKeyStages : 1][2][kCodes ? kScaleBytes : 16];
  // Weights in the layout of A for the products with V: each lane's words of 32 keys, or of 16.
  alignas(16) uint32_t weights[kListWarps][kHalves == 1 ? 2 : 4][32][4];
  alignas(16) ByTile tops[2];  // maximal scores, in this partition and the previous one
  alignas(16) ByTile factors;  // c of each tile, which rescales what precedes it
  alignas(16) ByTile sums;     // sums of weights
  gpu::ptx::Mbarrier keys_full[kKeyStages];
  gpu::ptx::Mbarrier keys_empty[kKeyStages];
  gpu::ptx::Mbarrier values_full[kValueStages];
  gpu::ptx::Mbarrier values_empty[kValueStages];
  int32_t blocks[32];  // the partition's whose copies are being issued
  int32_t starts[kListWords];
};

__device__ __forceinline__ int list_lane() { return static_cast<int>(threadIdx.x % 32); }

__device__ __forceinline__ int list_warp() { return static_cast<int>(threadIdx.x / 32); }

// Returns a lane's place among the 4 lanes of its rows.
__device__ __forceinline__ int list_quad() { return list_lane() % 4; }

__device__ __forceinline__ int list_row(int h) { return list_lane() / 4 + 8 * h; }

// Bytes from one block's scales to the next one's. std::max would take references to constants,
// which a device does not have: nvcc says nothing and puts a trap there.
constexpr int32_t scale_stride(int32_t block_size) {
  const int32_t bytes = block_size * int32_t{sizeof(float)};
  return bytes > kLineBytes ? bytes : kLineBytes;
}

// D += A B for 16 columns' words of B and the lane's words of A, two for each half.
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

// Returns the even (or odd) codes of a word from ldmatrix, as two 16-bit floats.
template <typename Cache>
__device__ __forceinline__ uint32_t even_of(uint32_t codes) {
  return Cache::widen(codes & kEvenBytes);
}

template <typename Cache>
__device__ __forceinline__ uint32_t odd_of(uint32_t codes) {
  return Cache::widen(codes >> 8 & kEvenBytes);
}

// A block's state for its current row block.
template <int kHalves>
struct ListBlock {
  RowBlock rows;
  KeyRange keys;              // seen by some row
  KeyRange all;               // seen by all rows
  KeyRange visible[kHalves];  // to the lane's rows; rows past the last see what that one sees
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
