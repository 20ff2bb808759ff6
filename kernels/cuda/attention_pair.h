// SPDX-License-Identifier: Apache-2.0
// A lane's two rows of attention, in the layout of tensor cores' products, by the definition in
// launch.h: the work on scores and outputs between products, for all kernels by tensor cores; and a
// block's walk over tiles.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {

// Lane 4 g + q has rows g and g + 8 of a warp's 16. Of 8 columns of a product it has four values,
// where d[2 h + c] is column 2 q + c of row g + 8 h. Scores and outputs are arrays of such fours,
// in the order of their columns; 8 scores are a group of 16 keys.
// `Work` is AttentionWork, or has its functions.
template <int kOutputs, int kThreads, typename Work = AttentionWork>
class RowPair {
 public:
  // The joined outputs of earlier partitions, for each thread of the block. Without threads they
  // are where the outputs go.
  using Row = float[kThreads > 0 ? kThreads : 1];
  using Totals = Row[kOutputs];

  // The warp has rows from `first_row` on and outputs of d from `first_d` on. `stores_state`:
  // whether this warp stores m and l of a partial.
  __device__ __forceinline__ RowPair(const Work& work,
                                     const RowBlock& block,
                                     int32_t first_row,
                                     int32_t first_d,
                                     bool stores_state,
                                     Row* totals)
      : work_(work),
        block_(block),
        totals_(totals),
        first_row_(first_row),
        first_d_(first_d),
        stores_state_(stores_state) {
    const int32_t last = block.num_rows - 1;
    for (int h = 0; h < 2; ++h) {
      visible_[h] = visible_keys(work, block, row_of(h) < last ? row_of(h) : last);
      total_[h] = {.m = kLowest, .l = 0};
    }
    const int32_t end_row = first_row + 15;
    first_visible_ = visible_keys(work, block, first_row < last ? first_row : last);
    last_visible_ = visible_keys(work, block, end_row < last ? end_row : last);
  }

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  __device__ __forceinline__ int32_t row_of(int h) const { return first_row_ + lane() / 4 + 8 * h; }

  // Whether the warp has a row that sees a key of the tile.
  __device__ __forceinline__ bool sees(int32_t begin) const {
    return first_row_ < block_.num_rows && first_visible_.begin < begin + kAttentionTile &&
           last_visible_.end > begin;
  }

  // The accumulators of products with V.
  __device__ __forceinline__ float (&outputs())[kOutputs] { return o_; }

  __device__ __forceinline__ void start_partition() {
#pragma unroll
    for (int h = 0; h < 2; ++h) state_[h] = {.m = kLowest, .l = 0};
    clear_outputs();
  }

  // Copies m and l of the partition to `state`, and resets them if the partition `ends`; its last
  // outputs may still be in flight.
  __device__ __forceinline__ void take_state(bool ends, RowState (&state)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state[h] = state_[h];
      state_[h].m = ends ? kLowest : state_[h].m;
      state_[h].l = ends ? 0 : state_[h].l;
    }
  }

  // Turns products into scores, from key `first_key` of the tile at `begin` on; keys that a row
  // does not see get the lowest score. Cap and slopes have loops of their own, so that their code
  // is not interleaved with other scores.
  template <int kScores>
  __device__ __forceinline__ void finish_scores(int32_t begin,
                                                int32_t first_key,
                                                float (&s)[kScores]) const {
    const bool all = last_visible_.begin <= begin && first_visible_.end >= begin + kAttentionTile;
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = __fmul_rn(s[i], work_.args.scale);
    if (work_.args.soft_cap != 0) cap(s);
    if (work_.args.slopes != nullptr) lean(begin + first_key, s);
    if (all) return;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int32_t key = begin + first_key + column_of(i);
      const KeyRange& visible = visible_[i % 4 / 2];
      if (key < visible.begin || key >= visible.end) s[i] = -__builtin_inff();
    }
  }

  // Returns the column of number i of an array of fours.
  __device__ __forceinline__ static int column_of(int i) {
    return i / 4 * 8 + lane() % 4 * 2 + i % 2;
  }

  // Returns each row's highest score of the warp.
  template <int kScores>
  __device__ __forceinline__ static void find_tops(const float (&s)[kScores], float (&tops)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = kLowest;
#pragma unroll
      for (int i = 2 * h; i < kScores; i += 4) top = top_of(top_of(top, s[i]), s[i + 1]);
      top = top_of(top, __shfl_xor_sync(kAllLanes, top, 1));
      tops[h] = top_of(top, __shfl_xor_sync(kAllLanes, top, 2));
    }
  }

  // Raises each row's m to its highest score of the tile; c: the factor of what precedes it.
  __device__ __forceinline__ void raise(const float (&tops)[2], float (&c)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float m = top_of(state_[h].m, tops[h]);
      c[h] = exp_of_difference(__fsub_rn(state_[h].m, m));
      state_[h].m = m;
    }
  }

  // Turns scores into weights, and returns the lane's sum of each group.
  template <int kScores>
  __device__ __forceinline__ void weigh(float (&s)[kScores], float (&parts)[2][kScores / 8]) const {
#pragma unroll
    for (int group = 0; group < kScores / 8; ++group) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float& p = s[8 * group + j];
        p = exp_of_difference(__fsub_rn(p, state_[j % 4 / 2].m));
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* const p = s + 8 * group + 2 * h;
        parts[h][group] = __fadd_rn(__fadd_rn(__fadd_rn(p[0], p[1]), p[4]), p[5]);
      }
    }
  }

  // Packs the weights of a tile as A of products with V.
  template <typename Cache, int kScores>
  __device__ __forceinline__ static void pack(const float (&s)[kScores],
                                              uint32_t (&weights)[kScores / 8][4]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      weights[i / 4][i % 4] = Cache::pack(s[2 * i], s[2 * i + 1]);
    }
  }

  // Adds the tile's sum to l, from the lane's sums of all four groups.
  __device__ __forceinline__ void add_sum(int h, const float (&parts)[4], const float (&c)[2]) {
    float sum = __fadd_rn(__fadd_rn(parts[0], parts[1]), __fadd_rn(parts[2], parts[3]));
    sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2));
    state_[h].l = __fmaf_rn(state_[h].l, c[h], sum);
  }

  // Multiplies outputs by c, unless every c is 1, which is so if no row of the warp has a higher m.
  __device__ __forceinline__ void rescale(const float (&c)[2]) {
    const bool changes = c[0] != 1 || c[1] != 1;
    if (__reduce_max_sync(kAllLanes, changes ? 1U : 0U) == 0) return;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o_[i] = __fmul_rn(o_[i], c[i % 4 / 2]);
  }

  __device__ __forceinline__ void end_partition(int32_t partition) {
    end_partition(partition, state_);
  }

  // end_partition() with m and l from take_state(). Both reset the outputs.
  __device__ __forceinline__ void end_partition(int32_t partition, const RowState (&state)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t begin = partition * kAttentionPartition;
      const KeyRange seen = keys_within(visible_[h], begin, kAttentionPartition);
      if (row_of(h) >= block_.num_rows || seen.end == 0) continue;
      if (is_split(work_, block_)) {
        store_partial(h, state[h], partition - first_partition_of(work_, block_));
      } else {
        join(h, state[h], visible_[h].begin >= begin);
      }
    }
    clear_outputs();
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t r = row_of(h);
      if (r >= block_.num_rows) continue;
      const Finish finish = finish_of(sink_of(work_, block_, r), total_[h]);
      float* const out = output_of(work_, block_, r);
      if constexpr (kThreads > 0) {
        for_outputs(h, [&](int index, int32_t d, float) {
          out[d] = finished(finish, totals_[index][threadIdx.x]);
        });
      } else {
#pragma unroll 2
        for (int i = 0; i < kOutputs / 2; ++i) {  // few at once: divisions take registers
          const int32_t d = first_d_ + column_of(index_of_output(h, i));
          if (d < work_.args.kv.value_width()) out[d] = finished(finish, out[d]);
        }
      }
    }
  }

 private:
  // Returns the index of the lane's output i of row h.
  __device__ __forceinline__ static int index_of_output(int h, int i) {
    return i / 2 * 4 + 2 * h + i % 2;
  }

  // Calls f(index, d, o) for the lane's outputs of a row; the partition's zeros are +0.
  template <typename F>
  __device__ __forceinline__ void for_outputs(int h, F f) const {
#pragma unroll
    for (int i = 0; i < kOutputs / 2; ++i) {
      const int index = index_of_output(h, i);
      const int32_t d = first_d_ + column_of(index);
      if (d >= work_.args.kv.value_width()) continue;
      f(index, d, __fadd_rn(o_[index], 0.0F));
    }
  }

  template <int kScores>
  __device__ __forceinline__ void cap(float (&s)[kScores]) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = __fmul_rn(work_.args.soft_cap, tanh_of(__fdiv_rn(s[i], work_.args.soft_cap)));
    }
  }

  // Adds what scores gain for each token of distance, from key `first` on.
  template <int kScores>
  __device__ __forceinline__ void lean(int32_t first, float (&s)[kScores]) const {
    float slopes[2];
    for (int h = 0; h < 2; ++h) slopes[h] = slope_of(work_, block_, row_of(h));
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int32_t distance = visible_[i % 4 / 2].end - 1 - (first + column_of(i));
      s[i] = __fmaf_rn(slopes[i % 4 / 2], __int2float_rn(distance), s[i]);
    }
  }

  __device__ __forceinline__ void clear_outputs() {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o_[i] = 0;
  }

  __device__ __forceinline__ void store_partial(int h, const RowState& state, int32_t index) const {
    float* const partial = partial_of(work_, block_, index, row_of(h));
    for_outputs(h, [&](int, int32_t d, float o) { partial[d] = o; });
    if (lane() % 4 != 0 || !stores_state_) return;
    partial[work_.args.kv.head_dim] = state.m;
    partial[work_.args.kv.head_dim + 1] = state.l;
  }

  __device__ __forceinline__ void join(int h, const RowState& state, bool starts) {
    const MergeFactors factors = merge_factors(total_[h].m, state.m);
    total_[h] = starts ? state : RowState{factors.m, merged(factors, total_[h].l, state.l)};
    float* const out = kThreads > 0 ? nullptr : output_of(work_, block_, row_of(h));
    for_outputs(h, [&](int index, int32_t d, float o) {
      float& total = kThreads > 0 ? totals_[index][threadIdx.x] : out[d];
      total = starts ? o : merged(factors, total, o);
    });
  }

  const Work& work_;
  const RowBlock& block_;
  Row* totals_;
  int32_t first_row_;
  int32_t first_d_;
  bool stores_state_;
  KeyRange first_visible_;  // visible to the warp's first row and to its last
  KeyRange last_visible_;
  KeyRange visible_[2];  // to rows g and g + 8
  RowState state_[2];    // the partition's
  RowState total_[2];    // earlier partitions'
  float o_[kOutputs];
};

// Walks all partitions that the block's rows see, or, where partitions run side by side, number
// blockIdx.y and every gridDim.y-th after it. All threads of the block call it.
// Rows(shared, work, block): this warp's rows, with their pair() and take(tiles, tile).
// Tiles(shared, work, block, begin, end): the tiles [begin, end) on their way to shared memory.
template <typename Rows, typename Tiles, typename Shared, typename Work>
__device__ __forceinline__ void attend_partitions(Shared& shared, const Work& work) {
  const RowBlock block = find_rows(work);
  if (block.num_rows == 0) return;
  auto index = static_cast<int32_t>(blockIdx.y);
  KeyRange walked = tiles_of(work, block, index);
  if (walked.begin >= walked.end) return;
  Rows rows(shared, work, block);
  while (true) {
    Tiles tiles(shared, work, block, walked.begin, walked.end);
    for (int32_t tile = walked.begin; tile < walked.end; ++tile) {
      if (tile == walked.begin || tile % kPartitionTiles == 0) rows.pair().start_partition();
      rows.take(tiles, tile);
      if (tile + 1 == walked.end || (tile + 1) % kPartitionTiles == 0) {
        rows.pair().end_partition(tile / kPartitionTiles);
      }
    }
    if (!is_split(work, block)) return rows.pair().finish();
    index += static_cast<int32_t>(gridDim.y);
    walked = tiles_of(work, block, index);
    if (walked.begin >= walked.end) return;
    __syncthreads();  // shared memory is filled again
  }
}

}  // namespace sluice::kernels::cuda
