// SPDX-License-Identifier: Apache-2.0
// Attention on tensor cores, for caches of 16 and 8 bits, by the definition in launch.h. A block
// has rows of one request that share a KV head and walks tiles of 64 keys: K and V, one after the
// other, come by cp.async into a ring of slots while earlier ones are multiplied. With many rows
// each of 4 warps has 16 of them; with 16 or fewer, the warps share them: a warp has 16 keys of a
// tile, then a part of d. Codes become 16-bit floats, exactly, on their way to a tile in shared
// memory. No GPU has run it yet.
#include <algorithm>
#include <cstddef>

#include "engine/core/status.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

using Work = AttentionWork;

constexpr int kThreads = kAttentionThreads;
constexpr int kWarps = kAttentionWarps;

// The rows of a warp: q, and what their partition has so far. Lane 4 g + q has, of 8 columns of a
// product, columns 2 q and 2 q + 1 of rows g and g + 8.
template <typename Cache, int kDim, int kRows>
class WarpRows {
  using Shared = TileMemory<Cache, kDim, kRows>;
  static constexpr bool kTogether = Shared::kTogether;
  static constexpr int kGroups = kTogether ? 1 : kTileSteps;  // of 16 keys that it scores
  // Of 16 d that it has outputs of.
  static constexpr int kColumns = kDim / kStep / (kTogether ? kWarps : 1);
  using Scores = float[kGroups][2][4];

 public:
  __device__ __forceinline__ WarpRows(Shared& shared, const Work& work, const RowBlock& block)
      : shared_(shared),
        work_(work),
        block_(block),
        width_(static_cast<int32_t>(cached_head_dim(work.args.kv.head_dim))),
        first_row_(kTogether ? 0 : warp() * 16) {
    load_queries();
    const int32_t last = block.num_rows - 1;
    const int32_t end_row = first_row_ + 15 < last ? first_row_ + 15 : last;
    has_rows_ = first_row_ <= last;
    for (int h = 0; h < 2; ++h) {
      const int32_t row = row_of(h) < last ? row_of(h) : last;
      visible_[h] = visible_keys(work, block, row);
      total_[h] = {.m = kLowest, .l = 0};
    }
    if (!has_rows_) return;
    first_visible_ = visible_keys(work, block, first_row_);
    last_visible_ = visible_keys(work, block, end_row);
  }

  __device__ __forceinline__ void start_partition() {
#pragma unroll
    for (int h = 0; h < 2; ++h) state_[h] = {.m = kLowest, .l = 0};
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) o_[i][j / 4][j % 4] = 0;
    }
  }

  // One tile. By the lemma of launch.h a warp leaves out tiles that its rows do not see.
  __device__ __forceinline__ void take(TileRing<Cache, kDim, kRows>& tiles, int32_t tile) {
    const int32_t begin = tile * kAttentionTile;
    const bool sees =
        has_rows_ && first_visible_.begin < begin + kAttentionTile && last_visible_.end > begin;
    const std::byte* const k = tiles.next();
    uint32_t weights[kGroups][4];
    float c[2];
    float sums[2];
    if (sees) {
      Scores s;
      multiply_keys(k, s);
      finish_scores(tiles, begin, s);
      take_tops(s, c);
      weigh(tiles, s, weights, sums);
    }
    const std::byte* const v = tiles.next();
    if (!sees) return;
    multiply_values(v, weights, c);
    add_sums(sums, c);
  }

  __device__ __forceinline__ void end_partition(int32_t partition) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t begin = partition * kAttentionPartition;
      const KeyRange seen = keys_within(visible_[h], begin, kAttentionPartition);
      if (row_of(h) >= block_.num_rows || seen.end == 0) continue;
      if (work_.partials != nullptr) {
        store_partial(h);
      } else {
        join(h, visible_[h].begin >= begin);
      }
    }
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t r = row_of(h);
      if (r >= block_.num_rows) continue;
      const Finish finish = finish_of(sink_of(work_, block_, r), total_[h]);
      float* const out = work_.args.out + head_at(work_, block_, r, work_.args.out_stride);
      for_outputs(h, [&](int index, int32_t d, float) {
        out[d] = finished(finish, shared_.total[index][threadIdx.x]);
      });
    }
  }

 private:
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x / 32); }

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  __device__ __forceinline__ int32_t row_of(int h) const { return first_row_ + lane() / 4 + 8 * h; }

  __device__ __forceinline__ static int first_group() { return kTogether ? warp() : 0; }

  __device__ __forceinline__ static int first_d() {
    return kTogether ? warp() * kColumns * kStep : 0;
  }

  // Rounded, through the ring's last slot or the tile; zeros for rows and d that there are not.
  __device__ __forceinline__ void load_queries() {
    std::byte* const rows = Shared::kCodes ? shared_.tile : shared_.ring[Shared::kSlots - 1];
    const int32_t head_dim = work_.args.kv.head_dim;
    constexpr int kRowWords = kDim / 2;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kRows * kRowWords; i += kThreads) {
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
#pragma unroll
    for (int step = 0; step < kDim / kStep; ++step) {
      load_rows<2 * kDim>(q_[step], rows, first_row_, 2 * step);
    }
  }

  __device__ __forceinline__ void multiply_keys(const std::byte* k, Scores& s) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int j = 0; j < 8; ++j) s[group][j / 4][j % 4] = 0;
    }
#pragma unroll
    for (int step = 0; step < kDim / kStep; ++step) {
      if (step * kStep >= width_) break;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        uint32_t b[4];
        load_columns<kKeyRowBytes>(b, k, step * kStep, 2 * (first_group() + group));
        Cache::multiply(s[group][0], q_[step], b[0], b[1]);
        Cache::multiply(s[group][1], q_[step], b[2], b[3]);
      }
    }
  }

  // From products to scores; those of keys that a row does not see are lowest of all.
  __device__ __forceinline__ void finish_scores(const TileRing<Cache, kDim, kRows>& tiles,
                                                int32_t begin,
                                                Scores& s) const {
    const bool all = last_visible_.begin <= begin && first_visible_.end >= begin + kAttentionTile;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float& score = s[group][j / 4][j % 4];
        const int key = key_of(group, j);
        if constexpr (Shared::kCodes) {
          score = __fmul_rn(score, __fmul_rn(tiles.scales()[0][key], Cache::kScaleUnit));
        }
        score = __fmul_rn(score, work_.args.scale);
        if (work_.args.soft_cap != 0) {
          score = __fmul_rn(work_.args.soft_cap, tanh_of(__fdiv_rn(score, work_.args.soft_cap)));
        }
      }
    }
    if (all) return;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int32_t key = begin + key_of(group, j);
        const KeyRange& visible = visible_[j % 4 / 2];
        if (key < visible.begin || key >= visible.end) s[group][j / 4][j % 4] = -kInfinity;
      }
    }
  }

  // Of the tile, of the lane's score j of a group.
  __device__ __forceinline__ static int key_of(int group, int j) {
    return (first_group() + group) * kStep + j / 4 * 8 + lane() % 4 * 2 + j % 2;
  }

  // Each row's m, and c = what it makes of what was there.
  __device__ __forceinline__ void take_tops(const Scores& s, float (&c)[2]) {
    float tops[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = kLowest;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int j = 0; j < 4; ++j) top = higher_of(top, s[group][j / 2][2 * h + j % 2]);
      }
      top = higher_of(top, __shfl_xor_sync(kAllLanes, top, 1));
      tops[h] = higher_of(top, __shfl_xor_sync(kAllLanes, top, 2));
    }
    if constexpr (kTogether) {
      if (lane() % 4 == 0) {
        shared_.tops[lane() / 4][warp()] = tops[0];
        shared_.tops[lane() / 4 + 8][warp()] = tops[1];
      }
      __syncthreads();
      for (int h = 0; h < 2; ++h) {
        const float(&of_warps)[kWarps] = shared_.tops[lane() / 4 + 8 * h];
        for (int w = 0; w < kWarps; ++w) tops[h] = higher_of(tops[h], of_warps[w]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float m = higher_of(state_[h].m, tops[h]);
      c[h] = exp_of(__fsub_rn(state_[h].m, m));
      state_[h].m = m;
    }
  }

  // From scores to weights, as A of the next product, and their sums.
  __device__ __forceinline__ void weigh(const TileRing<Cache, kDim, kRows>& tiles,
                                        Scores& s,
                                        uint32_t (&weights)[kGroups][4],
                                        float (&sums)[2]) {
    float parts[2][kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float& p = s[group][j / 4][j % 4];
        p = exp_of(__fsub_rn(p, state_[j % 4 / 2].m));
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float part = __fadd_rn(s[group][0][2 * h], s[group][0][2 * h + 1]);
        part = __fadd_rn(part, s[group][1][2 * h]);
        parts[h][group] = __fadd_rn(part, s[group][1][2 * h + 1]);
      }
      if constexpr (Shared::kCodes) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          float& p = s[group][j / 4][j % 4];
          const float scale = __fmul_rn(tiles.scales()[1][key_of(group, j)], Cache::kScaleUnit);
          p = p == 0 ? 0 : __fmul_rn(p, scale);  // of an unseen key the scale may be NaN
        }
      }
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float* const pair = &s[group][word / 2][word % 2 * 2];
        weights[group][word] = Cache::pack(pair[0], pair[1]);
      }
    }
    if constexpr (kTogether) {
      share(weights[0], parts);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sums[h] =
            __fadd_rn(__fadd_rn(parts[h][0], parts[h][1]), __fadd_rn(parts[h][2], parts[h][3]));
      }
    }
  }

  // The warp's 16 keys for the others, who see them after the barrier of the next V.
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
                                                  const uint32_t (&weights)[kGroups][4],
                                                  const float (&c)[2]) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float& o = o_[i][j / 4][j % 4];
        o = __fmul_rn(o, c[j % 4 / 2]);
      }
    }
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
        if (first_d() + i * kStep >= width_) break;
        uint32_t b[4];
        load_columns<2 * kDim>(b, v, step * kStep, first_d() / 8 + 2 * i);
        Cache::multiply(o_[i][0], a, b[0], b[1]);
        Cache::multiply(o_[i][1], a, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void add_sums(float (&sums)[2], const float (&c)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kTogether) {
        const float(&parts)[kWarps] = shared_.sums[(lane() / 4 + 8 * h) * 4 + lane() % 4];
        sums[h] = __fadd_rn(__fadd_rn(parts[0], parts[1]), __fadd_rn(parts[2], parts[3]));
      }
      float sum = __fadd_rn(sums[h], __shfl_xor_sync(kAllLanes, sums[h], 1));
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2));
      state_[h].l = __fmaf_rn(state_[h].l, c[h], sum);
    }
  }

  // f(index, d, o) for the lane's outputs of a row, of which the partition's zeros are +0.
  template <typename F>
  __device__ __forceinline__ void for_outputs(int h, F f) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int32_t d = first_d() + i * kStep + j / 2 * 8 + lane() % 4 * 2 + j % 2;
        const int word = 2 * h + j % 2;
        if (d >= work_.args.kv.head_dim) continue;
        f(i * 8 + j / 2 * 4 + word, d, __fadd_rn(o_[i][j / 2][word], 0.0F));
      }
    }
  }

  __device__ __forceinline__ void store_partial(int h) const {
    float* const partial = partial_of(work_, static_cast<int32_t>(blockIdx.y), row_of(h));
    for_outputs(h, [&](int, int32_t d, float o) { partial[d] = o; });
    if (lane() % 4 != 0 || (kTogether && warp() != 0)) return;
    partial[work_.args.kv.head_dim] = state_[h].m;
    partial[work_.args.kv.head_dim + 1] = state_[h].l;
  }

  __device__ __forceinline__ void join(int h, bool starts) {
    const MergeFactors factors = merge_factors(total_[h].m, state_[h].m);
    total_[h] = starts ? state_[h] : RowState{factors.m, merged(factors, total_[h].l, state_[h].l)};
    for_outputs(h, [&](int index, int32_t, float o) {
      float& total = shared_.total[index][threadIdx.x];
      total = starts ? o : merged(factors, total, o);
    });
  }

  static constexpr float kInfinity = __builtin_inff();

  Shared& shared_;
  const Work& work_;
  const RowBlock& block_;
  int32_t width_;
  int32_t first_row_;
  bool has_rows_;
  KeyRange first_visible_{0, 0};  // of the warp's first row and of its last
  KeyRange last_visible_{0, 0};
  KeyRange visible_[2];  // of rows g and g + 8
  RowState state_[2];    // of the partition
  RowState total_[2];    // of those before it
  uint32_t q_[kDim / kStep][4];
  float o_[kColumns][2][4];
};

template <typename Cache, int kDim, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    attention_mma_kernel(const __grid_constant__ Work work) {
  using Shared = TileMemory<Cache, kDim, kRows>;
  GPU_DYN_SHARED(Shared, shared);
  const RowBlock block = find_rows(work);
  if (block.num_rows == 0) return;
  const KeyRange keys = visible_to_any(work, block);
  int32_t first = keys.begin / kAttentionTile;
  int32_t end = (keys.end - 1) / kAttentionTile + 1;
  if (work.partials != nullptr) {
    const int32_t partition = keys.begin / kAttentionPartition + static_cast<int32_t>(blockIdx.y);
    first = std::max(first, partition * kPartitionTiles);
    end = std::min(end, (partition + 1) * kPartitionTiles);
    if (first >= end) return;
  }
  WarpRows<Cache, kDim, kRows> rows(shared, work, block);
  TileRing<Cache, kDim, kRows> tiles(shared, work, block, first, end);
  for (int32_t tile = first; tile < end; ++tile) {
    if (tile == first || tile % kPartitionTiles == 0) rows.start_partition();
    rows.take(tiles, tile);
    if (tile + 1 == end || (tile + 1) % kPartitionTiles == 0) {
      rows.end_partition(tile / kPartitionTiles);
    }
  }
  if (work.partials == nullptr) rows.finish();
}

template <typename Cache, int kDim, int kRows>
void start_shape(Stream stream, const Work& work, const AttentionGrid& grid) {
  gpu::launch(stream,
              {.blocks_x = grid.blocks,
               .blocks_y = grid.partitions,
               .threads = kThreads,
               .shared_bytes = sizeof(TileMemory<Cache, kDim, kRows>)},
              attention_mma_kernel<Cache, kDim, kRows>,
              work);
}

template <typename Cache>
void start(Stream stream, const Work& work, const AttentionGrid& grid) {
  const int32_t head_dim = work.args.kv.head_dim;
  const bool many = work.rows_per_block > kFewAttentionRows;
  if (head_dim <= 64) {
    return many ? start_shape<Cache, 64, kManyAttentionRows>(stream, work, grid)
                : start_shape<Cache, 64, kFewAttentionRows>(stream, work, grid);
  }
  if (head_dim <= 128) {
    return many ? start_shape<Cache, 128, kManyAttentionRows>(stream, work, grid)
                : start_shape<Cache, 128, kFewAttentionRows>(stream, work, grid);
  }
  CHECK_LE(head_dim, kMaxAttentionHeadDim);
  CHECK(!many);
  start_shape<Cache, 256, kFewAttentionRows>(stream, work, grid);
}

}  // namespace

void launch_attention_mma(Stream stream, const AttentionWork& work, const AttentionGrid& grid) {
  switch (work.args.kv.dtype) {
    case DType::kF16:
      return start<F16Cache>(stream, work, grid);
    case DType::kBF16:
      return start<Bf16Cache>(stream, work, grid);
    case DType::kI8:
      return start<Int8Cache>(stream, work, grid);
    case DType::kF8E4M3:
      return start<Fp8Cache>(stream, work, grid);
    case DType::kF32:
    case DType::kI32:
      break;
  }
  SLUICE_UNREACHABLE("no KV cache of the tensor cores");
}

}  // namespace sluice::kernels::cuda
