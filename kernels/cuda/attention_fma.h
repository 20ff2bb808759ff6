// SPDX-License-Identifier: Apache-2.0
// Attention by fp32 fma with the CPU's bits, for attention_fma.cu and latent_attention.cu. A block
// takes up to kRows query rows of one request that share a KV head and walks partitions of 512
// keys, which are read once for all of its rows. In a partition a thread computes the scores of its
// keys, a warp the weights of its rows, a thread the outputs of its d. `Work` is AttentionWork, or
// has its functions and score_keys().
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {

// How the output of a row's partition joins the earlier ones.
enum class Join : uint8_t { kNone, kStart, kMerge };

// The block's shared memory. A partition has scores, then weights [row][key], the place of each
// key's V, and the factors of o at the starts of tiles.
template <int kRows>
struct FmaShared {
  float* q;       // [row][head_stride]
  float* output;  // likewise: merged so far; an element is one thread's own
  float (*weights)[kAttentionPartition];
  const float** v;
  float (*rescale)[kPartitionTiles];
  Join* join;
  MergeFactors* factors;
  Finish* finish;
};

// Returns the floats of a query, and of an output, in shared memory.
template <typename Work>
__device__ __forceinline__ int32_t head_stride(const Work& work) {
  return static_cast<int32_t>(cached_head_dim(query_width(work)));
}

// Returns the rows that a thread of weigh_values has accumulators for.
constexpr int rows_together(int rows) { return rows < 8 ? rows : 8; }

template <int kRows, typename Work>
__device__ __forceinline__ FmaShared<kRows> carve(const Work& work) {
  GPU_DYN_SHARED_ARRAY(float, floats);
  float* const weights = floats + 2 * kRows * head_stride(work);
  GPU_SHARED(const float*, v, kAttentionPartition);
  GPU_SHARED(float, rescale, kRows* kPartitionTiles);
  GPU_SHARED(Join, join, kRows);
  GPU_SHARED(MergeFactors, factors, kRows);
  GPU_SHARED(Finish, finish, kRows);
  return {.q = floats,
          .output = floats + kRows * head_stride(work),
          .weights = reinterpret_cast<float(*)[kAttentionPartition]>(weights),
          .v = v,
          .rescale = reinterpret_cast<float(*)[kPartitionTiles]>(rescale),
          .join = join,
          .factors = factors,
          .finish = finish};
}

// Loads q; rows that the block does not have are zeros.
template <int kRows, typename Work>
__device__ __forceinline__ void load_queries(const Work& work,
                                             const RowBlock& block,
                                             const FmaShared<kRows>& shared) {
  for (int32_t r = 0; r < kRows; ++r) {
    const float* const q = query_of(work, block, r);
    for (auto d = static_cast<int32_t>(threadIdx.x); d < query_width(work);
         d += kAttentionThreads) {
      shared.q[r * head_stride(work) + d] = r < block.num_rows ? q[d] : 0.0F;
    }
  }
}

// acc[r] = the chain of row r, from where it is, over `width` elements of q and of the key whose
// elements are `stride` apart.
template <int kRows>
__device__ __forceinline__ void dot_rows(const float* q,
                                         int32_t q_stride,
                                         const float* k,
                                         int32_t stride,
                                         int32_t width,
                                         float (&acc)[kRows]) {
  int32_t d = 0;
#pragma unroll 4
  for (; d + 4 <= width; d += 4, k += 4 * stride) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = k[i * stride];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 query = *reinterpret_cast<const float4*>(q + r * q_stride + d);
      acc[r] = __fmaf_rn(query.x, x[0], acc[r]);
      acc[r] = __fmaf_rn(query.y, x[1], acc[r]);
      acc[r] = __fmaf_rn(query.z, x[2], acc[r]);
      acc[r] = __fmaf_rn(query.w, x[3], acc[r]);
    }
  }
  for (; d < width; ++d, k += stride) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) acc[r] = __fmaf_rn(q[r * q_stride + d], *k, acc[r]);
  }
}

// Returns the largest number of the 16 lanes of a half warp; the whole warp calls it.
__device__ __forceinline__ float highest_of_half(float x) {
  for (int half = 8; half >= 1; half /= 2) x = higher_of(x, __shfl_xor_sync(kAllLanes, x, half));
  return x;
}

// Turns a row's scores of one partition into weights and returns its m and l, by one warp; each
// half takes every other tile. A tile that the row does not see changes neither: c is exp(0) = 1.
__device__ __forceinline__ RowState weigh_row(float* scores, KeyRange visible, float* rescale) {
  const int lane = static_cast<int>(threadIdx.x % 16);
  const int half = static_cast<int>(threadIdx.x % 32 / 16);
  RowState state{.m = kLowest, .l = 0};
  for (int32_t pair = 0; pair < kPartitionTiles; pair += 2) {
    const int32_t tile = pair + half;
    float s[kAttentionTile / 16];
    float top = kLowest;
#pragma unroll
    for (int i = 0; i < kAttentionTile / 16; ++i) {
      const int32_t j = tile * kAttentionTile + 16 * i + lane;
      s[i] = j >= visible.begin && j < visible.end ? scores[j] : kLowest;
      top = higher_of(top, s[i]);
    }
    top = highest_of_half(top);
    const float other = __shfl_xor_sync(kAllLanes, top, 16);
    const float m_left = higher_of(state.m, half == 0 ? top : other);
    const float m_right = higher_of(m_left, half == 0 ? other : top);
    const float before = half == 0 ? state.m : m_left;
    const float after = half == 0 ? m_left : m_right;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kAttentionTile / 16; ++i) {
      const int32_t j = tile * kAttentionTile + 16 * i + lane;
      if (j < visible.begin || j >= visible.end) continue;
      const float weight = exp_of(__fsub_rn(s[i], after));
      sum = __fadd_rn(sum, weight);
      scores[j] = weight;
    }
    sum = sum_of_sixteen(sum);
    const float c = exp_of(__fsub_rn(before, after));
    const float other_sum = __shfl_xor_sync(kAllLanes, sum, 16);
    const float other_c = __shfl_xor_sync(kAllLanes, c, 16);
    state.l = __fmaf_rn(state.l, half == 0 ? c : other_c, half == 0 ? sum : other_sum);
    state.l = __fmaf_rn(state.l, half == 0 ? other_c : c, half == 0 ? other_sum : sum);
    state.m = m_right;
    if (lane == 0) rescale[tile] = c;
  }
  return state;
}

// Weighs the rows of a partition, a warp every kAttentionWarps-th; states[i] is the warp's row i,
// merged.
template <int kRows, typename Work>
__device__ __forceinline__ void weigh_rows(const Work& work,
                                           const RowBlock& block,
                                           int32_t partition,
                                           const FmaShared<kRows>& shared,
                                           RowState (&states)[kRows / kAttentionWarps]) {
  const int32_t partition_begin = partition * kAttentionPartition;
  const int32_t index = partition - first_partition_of(work, block);
  const bool first_lane = threadIdx.x % 32 == 0;
#pragma unroll
  for (int i = 0; i < kRows / kAttentionWarps; ++i) {
    const int32_t r = static_cast<int32_t>(threadIdx.x / 32) + i * kAttentionWarps;
    KeyRange visible{0, 0};
    if (r < block.num_rows) {
      const KeyRange keys = visible_keys(work, block, r);
      visible = keys_within(keys, partition_begin, kAttentionPartition);
    }
    if (visible.end == 0) {
      if (first_lane) shared.join[r] = Join::kNone;
      continue;
    }
    const RowState next = weigh_row(shared.weights[r], visible, shared.rescale[r]);
    if (is_split(work, block)) {
      float* const partial = partial_of(work, block, index, r);
      if (first_lane) {
        shared.join[r] = Join::kStart;
        partial[work.args.kv.head_dim] = next.m;
        partial[work.args.kv.head_dim + 1] = next.l;
      }
      continue;
    }
    const bool starts = visible_keys(work, block, r).begin >= partition_begin;
    const MergeFactors factors = merge_factors(states[i].m, next.m);
    states[i] = starts ? next : RowState{factors.m, merged(factors, states[i].l, next.l)};
    if (first_lane) {
      shared.join[r] = starts ? Join::kStart : Join::kMerge;
      shared.factors[r] = factors;
    }
  }
}

// acc[r] += the keys `keys` of a partition in order, for element d of V. kCheck: each row takes
// only keys that it sees.
template <bool kCheck, int kRows, int kTogether>
__device__ __forceinline__ void add_values(const FmaShared<kRows>& shared,
                                           int32_t d,
                                           int32_t first_row,
                                           KeyRange keys,
                                           const KeyRange (&visible)[kTogether],
                                           float (&acc)[kTogether]) {
#pragma unroll 8
  for (int32_t j = keys.begin; j < keys.end; ++j) {
    const float value = shared.v[j][d];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (kCheck && (j < visible[i].begin || j >= visible[i].end)) continue;
      acc[i] = __fmaf_rn(shared.weights[first_row + i][j], value, acc[i]);
    }
  }
}

// Computes the output of one partition: a thread takes some d for kTogether rows.
template <int kRows, typename Work>
__device__ __forceinline__ void weigh_values(const Work& work,
                                             const RowBlock& block,
                                             int32_t partition,
                                             const FmaShared<kRows>& shared) {
  const int32_t partition_begin = partition * kAttentionPartition;
  const int32_t index = partition - first_partition_of(work, block);
  constexpr int kTogether = rows_together(kRows);
  const int32_t width = work.args.kv.value_width();
  for (auto item = static_cast<int32_t>(threadIdx.x); item < width * (kRows / kTogether);
       item += kAttentionThreads) {
    const int32_t d = item % width;
    const int32_t first_row = item / width * kTogether;
    KeyRange visible[kTogether];
    KeyRange any{kAttentionPartition, 0};
    KeyRange all{0, kAttentionPartition};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      visible[i] = {0, 0};
      if (first_row + i >= block.num_rows) continue;
      const KeyRange keys = visible_keys(work, block, first_row + i);
      visible[i] = keys_within(keys, partition_begin, kAttentionPartition);
      if (visible[i].end == 0) continue;
      any = {std::min(any.begin, visible[i].begin), std::max(any.end, visible[i].end)};
      all = {std::max(all.begin, visible[i].begin), std::min(all.end, visible[i].end)};
    }
    float acc[kTogether] = {};
    for (int32_t tile = any.begin / kAttentionTile; tile * kAttentionTile < any.end; ++tile) {
      const int32_t begin = tile * kAttentionTile;
      const int32_t end = begin + kAttentionTile;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (visible[i].end > 0) acc[i] = __fmul_rn(acc[i], shared.rescale[first_row + i][tile]);
      }
      const KeyRange keys{std::max(begin, any.begin), std::min(end, any.end)};
      KeyRange common{std::max(keys.begin, all.begin), std::min(keys.end, all.end)};
      if (common.begin >= common.end) common = {keys.end, keys.end};
      add_values<true>(shared, d, first_row, {keys.begin, common.begin}, visible, acc);
      add_values<false>(shared, d, first_row, common, visible, acc);
      add_values<true>(shared, d, first_row, {common.end, keys.end}, visible, acc);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int32_t r = first_row + i;
      const Join join = shared.join[r];
      if (join == Join::kNone) continue;
      if (is_split(work, block)) {
        partial_of(work, block, index, r)[d] = acc[i];
        continue;
      }
      float& output = shared.output[r * head_stride(work) + d];
      output = join == Join::kStart ? acc[i] : merged(shared.factors[r], output, acc[i]);
    }
  }
}

// Finishes the rows' outputs after all partitions are merged.
template <int kRows, typename Work>
__device__ __forceinline__ void finish_rows(const Work& work,
                                            const RowBlock& block,
                                            const FmaShared<kRows>& shared,
                                            RowState (&states)[kRows / kAttentionWarps]) {
#pragma unroll
  for (int i = 0; i < kRows / kAttentionWarps; ++i) {
    const int32_t r = static_cast<int32_t>(threadIdx.x / 32) + i * kAttentionWarps;
    if (threadIdx.x % 32 == 0 && r < block.num_rows) {
      shared.finish[r] = finish_of(sink_of(work, block, r), states[i]);
    }
  }
  __syncthreads();
  const int32_t width = work.args.kv.value_width();
  // Threads take the elements that they took in weigh_values.
  constexpr int kTogether = rows_together(kRows);
  for (auto item = static_cast<int32_t>(threadIdx.x); item < width * (kRows / kTogether);
       item += kAttentionThreads) {
    const int32_t d = item % width;
    for (int i = 0; i < kTogether; ++i) {
      const int32_t r = item / width * kTogether + i;
      if (r >= block.num_rows) break;
      output_of(work, block, r)[d] =
          finished(shared.finish[r], shared.output[r * head_stride(work) + d]);
    }
  }
}

// Attends for the block's rows, by all of its threads.
template <int kRows, typename Work>
__device__ __forceinline__ void attend_rows(const Work& work) {
  const RowBlock block = find_rows(work);
  if (block.num_rows == 0) return;
  const KeyRange keys = visible_to_any(work, block);
  const int32_t last = (keys.end - 1) / kAttentionPartition;
  int32_t partition = first_partition_of(work, block);
  int32_t step = 1;
  if (is_split(work, block)) {
    partition += static_cast<int32_t>(blockIdx.y);
    step = static_cast<int32_t>(gridDim.y);
    if (partition > last) return;
  } else if (blockIdx.y > 0) {
    return;
  }
  const FmaShared<kRows> shared = carve<kRows>(work);
  load_queries(work, block, shared);
  __syncthreads();
  RowState states[kRows / kAttentionWarps];
#pragma unroll
  for (RowState& state : states) state = {.m = kLowest, .l = 0};
  for (; partition <= last; partition += step) {
    score_keys(work, block, partition * kAttentionPartition, shared);
    __syncthreads();
    weigh_rows(work, block, partition, shared, states);
    __syncthreads();
    weigh_values(work, block, partition, shared);
    __syncthreads();
  }
  if (!is_split(work, block)) finish_rows(work, block, shared, states);
}

// Returns the shared memory of a block.
template <int kRows, typename Work>
constexpr int64_t fma_shared_bytes(const Work& work) {
  return kRows * (2 * cached_head_dim(query_width(work)) + kAttentionPartition) *
         int64_t{sizeof(float)};
}

}  // namespace sluice::kernels::cuda
