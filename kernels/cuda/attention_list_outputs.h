// SPDX-License-Identifier: Apache-2.0
// Outputs of attention_list.cu: one warp has a part of d of all rows, by the definition in
// launch.h, and stores them when a partition or a row block ends. Codes become 16-bit floats,
// exactly, in registers: the halves of a word from ldmatrix are the even and the odd d.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_list_memory.h"
#include "kernels/cuda/attention_list_work.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {

template <typename Cache, int kDim, int kHalves>
class ListOutputs {
  using Memory = ListMemory<Cache, kDim, kHalves>;
  using Block = ListBlock<kHalves>;
  static constexpr bool kCodes = Memory::kCodes;
  static constexpr int kSlice = std::max(kDim / kListWarps, kCodes ? 16 : 8);  // d of a warp
  static constexpr int kColumns = kSlice / 8;                                  // groups of 8 d

 public:
  __device__ __forceinline__ ListOutputs(Memory& memory, const ListWork& list)
      : memory_(memory),
        list_(list),
        width_(static_cast<int32_t>(cached_head_dim(list.attention.args.kv.head_dim))) {
    const int matrix = list_lane() / 8;
    const int row = list_lane() % 8;
    for (int i = 0; i < kValueLoads; ++i) {
      // With one column of 8, a load has keys of two steps, else two columns of one step.
      const bool one = kCodes || kColumns == 1;
      const int key = (one ? matrix : matrix % 2) * 8 + row;
      const int d = first_d() + (kCodes ? i * 16 : one ? 0 : (2 * i + matrix / 2) * 8);
      value_offsets_[i] = value_offset(key, d);
    }
  }

  // Called before the row block's first partition.
  __device__ __forceinline__ void begin() {
    for (int h = 0; h < kHalves; ++h) total_[h] = {.m = kLowest, .l = 0};
#pragma unroll
    for (int i = 0; i < kColumns * 4; ++i) total_o_[i] = 0;
  }

  // Begins a partition of `count` tiles: sets its m and l.
  __device__ __forceinline__ void begin_partition(const typename Memory::ByTile& tops,
                                                  int32_t count) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int row = list_row(h);
      state_[h] = {.m = kLowest, .l = 0};
#pragma unroll
      for (int w = 0; w < kListWarps; ++w) {
        if (w >= count) continue;
        state_[h].m = top_of(state_[h].m, tops[row][w]);
        state_[h].l = __fmaf_rn(state_[h].l, memory_.factors[row][w], memory_.sums[row][w]);
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns * 4; ++i) o_[i] = 0;
  }

  // Multiplies tile number `tile` of the partition; `stage` holds its V, `begin` is its first key.
  __device__ __forceinline__ void multiply(const Block& block, int stage, int tile, int32_t begin) {
    if (first_d() >= width_) return;
    const std::byte* const v = memory_.values[stage];
    rescale(tile);
    constexpr int kRowBytes = std::min(kDim * Cache::kBytes, kLineBytes);
    const bool cut =
        !kCodes && (block.keys.begin > begin || block.keys.end < begin + kAttentionTile);
#pragma unroll
    for (int pair = 0; pair < kTileSteps / 2; ++pair) {
      uint32_t a[2][2 * kHalves];
      load_weights(tile, pair, a);
      const auto first_key = [&](int step) { return begin + (2 * pair + step) * kStep; };
      if constexpr (kCodes) {
        multiply_codes(v + pair * 2 * kStep * kRowBytes, a);
      } else if constexpr (kColumns == 1) {
        uint32_t b[4];
        gpu::ptx::ldmatrix_x4_trans(b, v + (value_offsets_[0] + pair * 2 * kStep * kRowBytes));
        for (int step = 0; step < 2; ++step) {
          uint32_t* const two = b + 2 * step;
          if (cut) hide_unseen(block.keys, first_key(step), two[0], two[1]);
          list_multiply<Cache, kHalves>(o_, a[step], two[0], two[1]);
        }
      } else {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int i = 0; i < kValueLoads; ++i) {
            uint32_t b[4];
            gpu::ptx::ldmatrix_x4_trans(
                b, v + (value_offsets_[i] + (2 * pair + step) * kStep * kRowBytes));
            if (cut) {
              hide_unseen(block.keys, first_key(step), b[0], b[1]);
              hide_unseen(block.keys, first_key(step), b[2], b[3]);
            }
            list_multiply<Cache, kHalves>(o_ + 8 * i, a[step], b[0], b[1]);
            list_multiply<Cache, kHalves>(o_ + 8 * i + 4, a[step], b[2], b[3]);
          }
        }
      }
    }
  }

  // Joins this partition, of which the row may see nothing, to the row's earlier ones.
  __device__ __forceinline__ void join(const Block& block, int32_t partition) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int32_t begin = partition * kAttentionPartition;
      if (keys_within(block.visible[h], begin, kAttentionPartition).end == 0) continue;
      const bool starts = block.visible[h].begin >= begin;
      const MergeFactors factors = merge_factors(total_[h].m, state_[h].m);
      total_[h] =
          starts ? state_[h] : RowState{factors.m, merged(factors, total_[h].l, state_[h].l)};
#pragma unroll
      for (int i = 0; i < kOfRow; ++i) {
        const float o = __fadd_rn(o_[index_of(h, i)], 0.0F);  // zeros are +0
        float& total = total_o_[index_of(h, i)];
        total = starts ? o : merged(factors, total, o);
      }
    }
  }

  // Writes the row block's rows of out; all of its partitions are joined.
  __device__ __forceinline__ void finish(const RowBlock& rows) const {
    const AttentionWork& work = list_.attention;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int row = list_row(h);
      if (row >= rows.num_rows) continue;
      const Finish finish = finish_of(sink_of(work, rows, row), total_[h]);
      float* const out = work.args.out + head_at(work, rows, row, work.args.out_stride);
#pragma unroll
      for (int i = 0; i < kOfRow; ++i) {
        if (d_of(i) < work.args.kv.head_dim) {
          out[d_of(i)] = finished(finish, total_o_[index_of(h, i)]);
        }
      }
    }
  }

  // Stores the partition as the block's partial of that number; store_joined(), as its last.
  __device__ __forceinline__ void store_partition(const RowBlock& rows, int32_t index) const {
    store(rows, index, o_, state_);
  }

  __device__ __forceinline__ void store_joined(const RowBlock& rows) const {
    store(rows, list_.slots - 1, total_o_, total_);
  }

 private:
  static constexpr int kValueLoads = kCodes ? kSlice / 16 : std::max(kColumns / 2, 1);
  static constexpr int kOfRow = kSlice / 4;  // a lane's outputs of a row

  __device__ __forceinline__ static int first_d() { return list_warp() * kSlice; }

  // Returns where output i of row h is in o_; d_of() returns its d.
  __device__ __forceinline__ static int index_of(int h, int i) { return i / 2 * 4 + 2 * h + i % 2; }

  __device__ __forceinline__ static int32_t d_of(int i) {
    const int column = i / 2;  // group of 8 d
    if constexpr (kCodes) {
      return first_d() + column / 2 * 16 + list_quad() * 4 + i % 2 * 2 + column % 2;
    }
    return first_d() + column * 8 + list_quad() * 2 + i % 2;
  }

  [[nodiscard]] __device__ __forceinline__ static uint32_t value_offset(int key, int d) {
    constexpr int kRowBytes = std::min(kDim * Cache::kBytes, kLineBytes);
    constexpr int kRowElements = kRowBytes / Cache::kBytes;
    const int piece = d % kRowElements * Cache::kBytes / kPieceBytes;
    const int turn = kRowBytes == kLineBytes ? key % 8 : key / 2 % 4;
    return static_cast<uint32_t>((d / kRowElements * kAttentionTile + key) * kRowBytes +
                                 (piece ^ turn) * kPieceBytes);
  }

  __device__ __forceinline__ void rescale(int tile) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const float c = memory_.factors[list_row(h)][tile];
#pragma unroll
      for (int i = 2 * h; i < kColumns * 4; i += 4) {
        o_[i] = __fmul_rn(o_[i], c);
        o_[i + 1] = __fmul_rn(o_[i + 1], c);
      }
    }
  }

  // Multiplies two steps of keys.
  __device__ __forceinline__ void multiply_codes(const std::byte* v,
                                                 const uint32_t (&a)[2][2 * kHalves]) {
#pragma unroll
    for (int i = 0; i < kValueLoads; ++i) {
      uint32_t b[4];
      gpu::ptx::ldmatrix_x4_trans(b, v + value_offsets_[i]);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint32_t first = b[2 * step];
        const uint32_t second = b[2 * step + 1];
        float* const to = o_ + 8 * i;
        list_multiply<Cache, kHalves>(to, a[step], even_of<Cache>(first), even_of<Cache>(second));
        list_multiply<Cache, kHalves>(to + 4, a[step], odd_of<Cache>(first), odd_of<Cache>(second));
      }
    }
  }

  __device__ __forceinline__ void load_weights(int tile,
                                               int pair,
                                               uint32_t (&a)[2][2 * kHalves]) const {
    const auto& from = memory_.weights[tile];
    if constexpr (kHalves == 1) {
      const Words words = *reinterpret_cast<const Words*>(from[pair][list_lane()]);
      for (int i = 0; i < 4; ++i) a[i / 2][i % 2] = words.word[i];
    } else {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const Words words = *reinterpret_cast<const Words*>(from[2 * pair + step][list_lane()]);
        for (int i = 0; i < 4; ++i) a[step][i] = words.word[i];
      }
    }
  }

  // Zeros V for keys that no row sees: whole blocks of the cache were copied, with NaN perhaps.
  __device__ __forceinline__ static void hide_unseen(KeyRange seen,
                                                     int32_t begin,
                                                     uint32_t& first,
                                                     uint32_t& second) {
    first &= seen_halves(seen, begin + list_quad() * 2);
    second &= seen_halves(seen, begin + kStep / 2 + list_quad() * 2);
  }

  [[nodiscard]] __device__ __forceinline__ static uint32_t seen_halves(KeyRange seen, int32_t key) {
    const uint32_t low = key >= seen.begin && key < seen.end ? 0xFFFFU : 0U;
    const uint32_t high = key + 1 >= seen.begin && key + 1 < seen.end ? 0xFFFF0000U : 0U;
    return low | high;
  }

  __device__ __forceinline__ void store(const RowBlock& rows,
                                        int32_t index,
                                        const float (&o)[kColumns * 4],
                                        const RowState (&state)[kHalves]) const {
    const int32_t head_dim = list_.attention.args.kv.head_dim;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int row = list_row(h);
      if (row >= rows.num_rows) continue;
      float* const partial = list_partial(list_, static_cast<int32_t>(blockIdx.x), index, row);
#pragma unroll
      for (int i = 0; i < kOfRow; ++i) {
        if (d_of(i) < head_dim) partial[d_of(i)] = __fadd_rn(o[index_of(h, i)], 0.0F);
      }
      if (list_warp() != 0 || list_quad() != 0) continue;
      partial[head_dim] = state[h].m;
      partial[head_dim + 1] = state[h].l;
    }
  }

  Memory& memory_;
  const ListWork& list_;
  int32_t width_;  // cached_head_dim()
  uint32_t value_offsets_[kValueLoads];
  RowState state_[kHalves];  // the partition's
  RowState total_[kHalves];  // the joined partitions'
  float o_[kColumns * 4];
  float total_o_[kColumns * 4];
};

}  // namespace sluice::kernels::cuda
