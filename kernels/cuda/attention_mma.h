// SPDX-License-Identifier: Apache-2.0
// Attention by mma.sync, for attention_mma.cu, attention_int8.cu and attention_fp8.cu, by the
// definition in launch.h. A block has rows of one request that share a KV head and walks tiles of
// 64 keys: K and V, one after the other, come by cp.async into a ring of slots while earlier ones
// are multiplied. With many rows each of 4 warps has 16 of them. With 16 or fewer, the warps share
// them: a warp has 16 keys of a tile, then a part of d. Codes become 16-bit floats, exactly, on
// their way to a tile in shared memory. With heads above 256 q stays in shared memory and the
// outputs of earlier partitions are in the output rows.
#pragma once

#include <cstddef>

#include "engine/core/status.h"
#include "kernels/cuda/attention_pair.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/overlap.h"

namespace sluice::kernels::cuda {

// The rows of a warp: q, and the state of their partition.
template <typename Cache, int kDim, int kRows>
class WarpRows {
  using Shared = TileMemory<Cache, kDim, kRows>;
  static constexpr bool kTogether = Shared::kTogether;
  static constexpr int kGroups = kTogether ? 1 : kTileSteps;  // groups of 16 keys that it scores
  // The groups of 16 d whose outputs it has.
  static constexpr int kColumns = kDim / kStep / (kTogether ? kAttentionWarps : 1);
  using Pair = RowPair<kColumns * 8, Shared::kIsWide ? 0 : kAttentionThreads>;
  using Scores = float[kGroups * 8];

 public:
  __device__ __forceinline__ WarpRows(Shared& shared,
                                      const AttentionWork& work,
                                      const RowBlock& block)
      : shared_(shared),
        work_(work),
        block_(block),
        width_(static_cast<int32_t>(cached_head_dim(work.args.kv.head_dim))),
        value_width_(static_cast<int32_t>(cached_head_dim(work.args.kv.value_width()))),
        first_row_(kTogether ? 0 : warp() * 16),
        pair_(work, block, first_row_, first_d(), !kTogether || warp() == 0, totals(shared)) {
    load_queries();
  }

  [[nodiscard]] __device__ __forceinline__ Pair& pair() { return pair_; }

  // Takes one tile. A warp leaves out tiles that its rows do not see: they change nothing.
  __device__ __forceinline__ void take(TileRing<Cache, kDim, kRows>& tiles, int32_t tile) {
    const int32_t begin = tile * kAttentionTile;
    const bool sees = pair_.sees(begin);
    const std::byte* const k = tiles.next();
    uint32_t weights[kGroups][4];
    float c[2];
    float parts[2][kGroups];
    if (sees) {
      Scores s;
      multiply_keys(k, s);
      if constexpr (Shared::kCodes) scale_keys(tiles, s);
      pair_.finish_scores(begin, first_group() * kStep, s);
      take_tops(s, c);
      pair_.weigh(s, parts);
      if constexpr (Shared::kCodes) scale_weights(tiles, s);
      Pair::template pack<Cache>(s, weights);
      if constexpr (kTogether) {
        share(weights[0], parts);
      } else {
        for (int h = 0; h < 2; ++h) pair_.add_sum(h, parts[h], c);
      }
    }
    const std::byte* const v = tiles.next();
    if (!sees) return;
    pair_.rescale(c);
    multiply_values(v, weights);
    if constexpr (kTogether) add_shared_sums(c);
  }

 private:
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x / 32); }

  __device__ __forceinline__ static int lane() { return Pair::lane(); }

  __device__ __forceinline__ static int first_group() { return kTogether ? warp() : 0; }

  __device__ __forceinline__ static int first_d() {
    return kTogether ? warp() * kColumns * kStep : 0;
  }

  __device__ __forceinline__ static typename Pair::Row* totals(Shared& shared) {
    if constexpr (Shared::kIsWide) {
      return nullptr;
    } else {
      return shared.total;
    }
  }

  // Returns where q is: for good where heads are wide, else until it is in registers.
  __device__ __forceinline__ std::byte* query_rows() const {
    if (Shared::kIsWide) return reinterpret_cast<std::byte*>(shared_.total);
    return Shared::kCodes ? shared_.tile : shared_.ring[Shared::kSlots - 1];
  }

  // Loads q, rounded; missing rows and d are zeros.
  __device__ __forceinline__ void load_queries() {
    std::byte* const rows = query_rows();
    const int32_t head_dim = work_.args.kv.head_dim;
    constexpr int kRowWords = kDim / 2;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kRows * kRowWords;
         i += kAttentionThreads) {
      const int32_t r = i / kRowWords;
      const int32_t d = i % kRowWords * 2;
      float low = 0;
      float high = 0;
      if (r < block_.num_rows) {
        const float* const q = work_.args.q + head_at(work_, block_, r, work_.args.q_stride);
        if (d < head_dim) low = q[d];
        if (d + 1 < head_dim) high = q[d + 1];
      }
      auto* const to = rows + offset_of<2 * kDim>(r, d / 8) + d % 8 * 2;
      *reinterpret_cast<uint32_t*>(to) = Cache::pack(low, high);
    }
    __syncthreads();
    if constexpr (!Shared::kIsWide) {
#pragma unroll
      for (int step = 0; step < kDim / kStep; ++step) {
        load_rows<2 * kDim>(q_[step], rows, first_row_, 2 * step);
      }
    }
  }

  __device__ __forceinline__ void multiply_keys(const std::byte* k, Scores& s) const {
#pragma unroll
    for (int i = 0; i < 8 * kGroups; ++i) s[i] = 0;
    if constexpr (Shared::kIsWide) {
#pragma unroll 4
      for (int step = 0; step < width_ / kStep; ++step) {
        uint32_t q[4];
        load_rows<2 * kDim>(q, query_rows(), 0, 2 * step);
        multiply_step(q, k, step, s);
      }
    } else {
#pragma unroll
      for (int step = 0; step < kDim / kStep; ++step) {
        if (step * kStep >= width_) break;
        multiply_step(q_[step], k, step, s);
      }
    }
  }

  __device__ __forceinline__ static void multiply_step(const uint32_t (&q)[4],
                                                       const std::byte* k,
                                                       int step,
                                                       Scores& s) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      uint32_t b[4];
      load_columns<kKeyRowBytes>(b, k, step * kStep, 2 * (first_group() + group));
      Cache::multiply(s + 8 * group, q, b[0], b[1]);
      Cache::multiply(s + 8 * group + 4, q, b[2], b[3]);
    }
  }

  // Returns the tile's scale of K or V for the lane's score i.
  __device__ __forceinline__ static float scale_of(const TileRing<Cache, kDim, kRows>& tiles,
                                                   int of_values,
                                                   int i) {
    const int key = first_group() * kStep + Pair::column_of(i);
    return __fmul_rn(tiles.scales()[of_values][key], Cache::kScaleUnit);
  }

  __device__ __forceinline__ static void scale_keys(const TileRing<Cache, kDim, kRows>& tiles,
                                                    Scores& s) {
#pragma unroll
    for (int i = 0; i < 8 * kGroups; ++i) s[i] = __fmul_rn(s[i], scale_of(tiles, 0, i));
  }

  __device__ __forceinline__ static void scale_weights(const TileRing<Cache, kDim, kRows>& tiles,
                                                       Scores& s) {
#pragma unroll
    for (int i = 0; i < 8 * kGroups; ++i) {
      // An unseen key's scale may be NaN.
      s[i] = s[i] == 0 ? 0 : __fmul_rn(s[i], scale_of(tiles, 1, i));
    }
  }

  // Takes each row's new m, and c, the factor of what precedes the tile.
  __device__ __forceinline__ void take_tops(const Scores& s, float (&c)[2]) {
    float tops[2];
    Pair::find_tops(s, tops);
    if constexpr (kTogether) {
      if (lane() % 4 == 0) {
        shared_.tops[lane() / 4][warp()] = tops[0];
        shared_.tops[lane() / 4 + 8][warp()] = tops[1];
      }
      __syncthreads();
      for (int h = 0; h < 2; ++h) {
        const float(&of_warps)[kAttentionWarps] = shared_.tops[lane() / 4 + 8 * h];
        for (int w = 0; w < kAttentionWarps; ++w) tops[h] = higher_of(tops[h], of_warps[w]);
      }
    }
    pair_.raise(tops, c);
  }

  // Writes the warp's weights of 16 keys, which other warps see after the barrier of the next V.
  __device__ __forceinline__ void share(const uint32_t (&weights)[4],
                                        const float (&parts)[2][kGroups]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane() / 4 + 8 * h;
      shared_.sums[row * 4 + lane() % 4][warp()] = parts[h][0];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        auto* const to =
            shared_.weights + offset_of<kKeyRowBytes>(row, 2 * warp() + half) + lane() % 4 * 4;
        *reinterpret_cast<uint32_t*>(to) = weights[2 * half + h];
      }
    }
  }

  __device__ __forceinline__ void multiply_values(const std::byte* v,
                                                  const uint32_t (&weights)[kGroups][4]) {
    float(&o)[kColumns * 8] = pair_.outputs();
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      uint32_t a[4];
      if constexpr (kTogether) {
        load_rows<kKeyRowBytes>(a, shared_.weights, 0, 2 * step);
      } else {
        for (int word = 0; word < 4; ++word) a[word] = weights[step][word];
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (first_d() + i * kStep >= value_width_) break;
        uint32_t b[4];
        load_columns<2 * kDim>(b, v, step * kStep, first_d() / 8 + 2 * i);
        Cache::multiply(o + 8 * i, a, b[0], b[1]);
        Cache::multiply(o + 8 * i + 4, a, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void add_shared_sums(const float (&c)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      pair_.add_sum(h, shared_.sums[(lane() / 4 + 8 * h) * 4 + lane() % 4], c);
    }
  }

  Shared& shared_;
  const AttentionWork& work_;
  const RowBlock& block_;
  int32_t width_;
  int32_t value_width_;
  int32_t first_row_;
  Pair pair_;
  uint32_t q_[Shared::kIsWide ? 1 : kDim / kStep][4];
};

template <typename Cache, int kDim, int kRows>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    attention_mma_kernel(const __grid_constant__ AttentionWork work) {
  gpu::ptx::start_next_launch();
  gpu::ptx::wait_for_launches();
  using Shared = TileMemory<Cache, kDim, kRows>;
  GPU_DYN_SHARED(Shared, shared);
  attend_partitions<WarpRows<Cache, kDim, kRows>, TileRing<Cache, kDim, kRows>>(shared, work);
}

template <typename Cache, int kDim, int kRows>
void launch_attention_shape(Stream stream, const AttentionWork& work, const AttentionGrid& grid) {
  gpu::launch(stream,
              {.blocks_x = grid.blocks,
               .blocks_y = grid.partitions,
               .threads = kAttentionThreads,
               .shared_bytes = sizeof(TileMemory<Cache, kDim, kRows>),
               .overlaps = overlaps(LaunchKind::kAttention, work.args.num_tokens)},
              attention_mma_kernel<Cache, kDim, kRows>,
              work);
}

template <typename Cache>
void launch_attention_by_mma(Stream stream, const AttentionWork& work, const AttentionGrid& grid) {
  const int32_t head_dim = work.args.kv.head_dim;
  const bool many = work.rows_per_block > kFewAttentionRows;
  if (head_dim <= 64) {
    return many ? launch_attention_shape<Cache, 64, kManyAttentionRows>(stream, work, grid)
                : launch_attention_shape<Cache, 64, kFewAttentionRows>(stream, work, grid);
  }
  if (head_dim <= 128) {
    return many ? launch_attention_shape<Cache, 128, kManyAttentionRows>(stream, work, grid)
                : launch_attention_shape<Cache, 128, kFewAttentionRows>(stream, work, grid);
  }
  CHECK_LE(head_dim, kMaxAttentionHeadDim);
  CHECK(!many);
  if (head_dim <= kWideHead) {
    return launch_attention_shape<Cache, kWideHead, kFewAttentionRows>(stream, work, grid);
  }
  launch_attention_shape<Cache, kMaxAttentionHeadDim, kFewAttentionRows>(stream, work, grid);
}

}  // namespace sluice::kernels::cuda
