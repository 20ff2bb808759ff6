// SPDX-License-Identifier: Apache-2.0
// kernels/attention.h with the CPU's bits, by fp32 fma. A block takes up to kRows query rows of one
// request that share a KV head and walks partitions of 512 keys; K and V are read once for all of
// its rows, straight from the cache: a warp reads neighbouring keys of K, neighbouring d of V. In a
// partition a thread makes the scores of its keys, a warp the weights of its rows, a thread the
// outputs of its d. Where a workspace is given, each partition has a block of its own and a second
// kernel merges. No GPU has run it yet.
#include "kernels/attention.h"

#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int32_t kTiles = kAttentionPartition / kAttentionTile;
constexpr float kLowest = -0x1.fffffep127F;

struct Work {
  AttentionArgs args;
  int32_t num_reqs;
  int32_t group;  // query heads of a KV head
  int32_t rows_per_block;
  int32_t head_stride;  // floats of a head in shared memory
  // [row block][KV head][partition of the row block][row][head_dim + 2]: o, m, l; null: the blocks
  // walk and finish.
  float* partials;
  int32_t partitions;  // of a row block at most
};

struct KeyRange {
  int32_t begin;
  int32_t end;
};

// Row r is query head r % group of the request's token r / group.
struct RowBlock {
  int32_t request;
  int32_t first_token;     // of the request, in the call
  int32_t first_position;  // of that token
  int32_t first_row;
  int32_t num_rows;  // 0: nothing to do
  int32_t kv_head;
};

// Each request's blocks start where those of the rows before it could end at most, so that a block
// finds its request by looking at one at a time.
__device__ __forceinline__ int32_t first_block_of(const Work& work, int32_t request) {
  const int64_t rows_before = int64_t{work.args.query_start_loc.data()[request]} * work.group;
  return static_cast<int32_t>(rows_before / work.rows_per_block) + request;
}

// By all threads of the block.
__device__ __forceinline__ RowBlock find_rows(const Work& work) {
  GPU_SHARED(int32_t, found, 1);
  const int32_t kv_heads = work.args.kv.num_kv_heads;
  const auto index = static_cast<int32_t>(blockIdx.x) / kv_heads;
  if (threadIdx.x == 0) found[0] = -1;
  __syncthreads();
  for (auto request = static_cast<int32_t>(threadIdx.x); request < work.num_reqs;
       request += kThreads) {
    const bool starts_before = first_block_of(work, request) <= index;
    if (starts_before && first_block_of(work, request + 1) > index) found[0] = request;
  }
  __syncthreads();
  const int32_t request = found[0];
  if (request < 0) return {};
  const int32_t first_token = work.args.query_start_loc.data()[request];
  const int32_t tokens = work.args.query_start_loc.data()[request + 1] - first_token;
  const int32_t first_row = (index - first_block_of(work, request)) * work.rows_per_block;
  const int32_t rows = tokens * work.group - first_row;
  return {.request = request,
          .first_token = first_token,
          .first_position = work.args.seq_lens.data()[request] - tokens,
          .first_row = first_row,
          .num_rows = rows < 0                     ? 0
                      : rows < work.rows_per_block ? rows
                                                   : work.rows_per_block,
          .kv_head = static_cast<int32_t>(blockIdx.x) % kv_heads};
}

// Of row r of the block; absolute.
__device__ __forceinline__ KeyRange visible_keys(const Work& work,
                                                 const RowBlock& block,
                                                 int32_t r) {
  const int32_t position = block.first_position + (block.first_row + r) / work.group;
  const bool cut = work.args.window > 0 && position >= work.args.window;
  return {cut ? position - work.args.window + 1 : 0, position + 1};
}

// Of any row; those of the last row begin and end last.
__device__ __forceinline__ KeyRange visible_to_any(const Work& work, const RowBlock& block) {
  return {visible_keys(work, block, 0).begin, visible_keys(work, block, block.num_rows - 1).end};
}

// `keys` within [begin, begin + size), relative to begin; {0, 0}: none.
__device__ __forceinline__ KeyRange keys_within(KeyRange keys, int32_t begin, int32_t size) {
  const int32_t first = keys.begin > begin ? keys.begin - begin : 0;
  const int32_t last = keys.end - begin < size ? keys.end - begin : size;
  return first < last ? KeyRange{first, last} : KeyRange{0, 0};
}

// Elements from the first of row r's head in q or out.
__device__ __forceinline__ int64_t head_at(const Work& work,
                                           const RowBlock& block,
                                           int32_t r,
                                           int64_t stride) {
  const int32_t row = block.first_row + r;
  const int32_t head = block.kv_head * work.group + row % work.group;
  return (block.first_token + row / work.group) * stride + int64_t{head} * work.args.kv.head_dim;
}

// The element type of a cache and its values, codes as kernels/attention.h takes them.
template <DType kType>
struct Cache {
  using Element = uint16_t;

  __device__ __forceinline__ static float value(uint16_t bits) {
    return kType == DType::kBF16 ? from_bf16(bits) : from_half(bits);
  }
};

template <>
struct Cache<DType::kF32> {
  using Element = float;

  __device__ __forceinline__ static float value(float x) { return x; }
};

template <>
struct Cache<DType::kI8> {
  using Element = int8_t;
  static constexpr float kScaleUnit = 1.0F;

  __device__ __forceinline__ static float value(int8_t code) { return __int2float_rn(code); }
};

template <>
struct Cache<DType::kF8E4M3> {
  using Element = uint8_t;
  static constexpr float kScaleUnit = 256.0F;

  __device__ __forceinline__ static float value(uint8_t code) { return e4m3_by_256(code); }
};

// What becomes of the output of a row's partition.
enum class Join : uint8_t { kNone, kStart, kMerge };

struct MergeFactors {
  float m;
  float keep;  // of what is there
  float add;   // of what joins
};

__device__ __forceinline__ MergeFactors merge_factors(float m, float m_next) {
  const float both = higher_of(m, m_next);
  return {both, exp_of(__fsub_rn(m, both)), exp_of(__fsub_rn(m_next, both))};
}

__device__ __forceinline__ float merged(const MergeFactors& factors, float x, float x_next) {
  return __fmaf_rn(x_next, factors.add, __fmul_rn(x, factors.keep));
}

struct RowState {
  float m;
  float l;
};

// The output is o * keep / l.
struct Finish {
  float keep;
  float l;
};

// Lets the sink, if any, join.
__device__ __forceinline__ Finish finish_of(const float* sink, const RowState& state) {
  if (sink == nullptr) return {.keep = 1.0F, .l = state.l};
  const MergeFactors factors = merge_factors(state.m, *sink);
  return {.keep = factors.keep, .l = merged(factors, state.l, 1.0F)};
}

__device__ __forceinline__ float finished(const Finish& finish, float o) {
  return __fdiv_rn(__fmul_rn(o, finish.keep), finish.l);
}

__device__ __forceinline__ const float* sink_of(const Work& work,
                                                const RowBlock& block,
                                                int32_t r) {
  if (work.args.sinks == nullptr) return nullptr;
  return work.args.sinks + block.kv_head * work.group + (block.first_row + r) % work.group;
}

// The block's shared memory. Those of a partition: scores, then weights [row][key], where each
// key's V and its scale are, and what a tile's start multiplies o with.
template <DType kType, int kRows>
struct Shared {
  float* q;       // [row][head_stride]
  float* output;  // likewise: merged so far, each element its thread's own
  float (*weights)[kAttentionPartition];
  const typename Cache<kType>::Element** v;
  float* v_scales;
  float (*rescale)[kTiles];
  Join* join;
  MergeFactors* factors;
  Finish* finish;
};

// Rows that a thread of weigh_values has accumulators for.
constexpr int rows_together(int rows) { return rows < 8 ? rows : 8; }

template <DType kType, int kRows>
__device__ __forceinline__ Shared<kType, kRows> carve(const Work& work) {
  using Element = typename Cache<kType>::Element;
  GPU_DYN_SHARED_ARRAY(float, floats);
  float* const weights = floats + 2 * kRows * work.head_stride;
  GPU_SHARED(const Element*, v, kAttentionPartition);
  GPU_SHARED(float, v_scales, has_kv_scales(kType) ? kAttentionPartition : 1);
  GPU_SHARED(float, rescale, kRows* kTiles);
  GPU_SHARED(Join, join, kRows);
  GPU_SHARED(MergeFactors, factors, kRows);
  GPU_SHARED(Finish, finish, kRows);
  return {.q = floats,
          .output = floats + kRows * work.head_stride,
          .weights = reinterpret_cast<float(*)[kAttentionPartition]>(weights),
          .v = v,
          .v_scales = v_scales,
          .rescale = reinterpret_cast<float(*)[kTiles]>(rescale),
          .join = join,
          .factors = factors,
          .finish = finish};
}

// Zeros for rows that the block has not.
template <DType kType, int kRows>
__device__ __forceinline__ void load_queries(const Work& work,
                                             const RowBlock& block,
                                             const Shared<kType, kRows>& shared) {
  for (int32_t r = 0; r < kRows; ++r) {
    const float* const q = work.args.q + head_at(work, block, r, work.args.q_stride);
    for (auto d = static_cast<int32_t>(threadIdx.x); d < work.args.kv.head_dim; d += kThreads) {
      shared.q[r * work.head_stride + d] = r < block.num_rows ? q[d] : 0.0F;
    }
  }
}

// acc[r] = the chain of row r and the key whose elements are `stride` apart.
template <DType kType, int kRows>
__device__ __forceinline__ void dot_rows(const Work& work,
                                         const float* q,
                                         const typename Cache<kType>::Element* k,
                                         float (&acc)[kRows]) {
  const int32_t stride = work.args.kv.block_size;
  const int32_t width = work.args.kv.head_dim;
  int32_t d = 0;
#pragma unroll 4
  for (; d + 4 <= width; d += 4, k += 4 * stride) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = Cache<kType>::value(k[i * stride]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 query = *reinterpret_cast<const float4*>(q + r * work.head_stride + d);
      acc[r] = __fmaf_rn(query.x, x[0], acc[r]);
      acc[r] = __fmaf_rn(query.y, x[1], acc[r]);
      acc[r] = __fmaf_rn(query.z, x[2], acc[r]);
      acc[r] = __fmaf_rn(query.w, x[3], acc[r]);
    }
  }
  for (; d < width; ++d, k += stride) {
    const float x = Cache<kType>::value(*k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) acc[r] = __fmaf_rn(q[r * work.head_stride + d], x, acc[r]);
  }
}

// The scores of the keys of a partition that some row sees, a thread a key.
template <DType kType, int kRows>
__device__ __forceinline__ void score_keys(const Work& work,
                                           const RowBlock& block,
                                           int32_t partition_begin,
                                           const Shared<kType, kRows>& shared) {
  using Element = typename Cache<kType>::Element;
  const KvLayerView& kv = work.args.kv;
  const KeyRange keys =
      keys_within(visible_to_any(work, block), partition_begin, kAttentionPartition);
  const int64_t head_bytes = kv_head_bytes(kType, kv.head_dim, kv.block_size);
  const int64_t padded = cached_head_dim(kv.head_dim);
  const int32_t* const table =
      work.args.block_table + int64_t{block.request} * work.args.block_table_stride;
  // From a multiple of 32, so that a warp reads whole sectors.
  for (int32_t j = keys.begin / 32 * 32 + static_cast<int32_t>(threadIdx.x); j < keys.end;
       j += kThreads) {
    if (j < keys.begin) continue;
    const int32_t key = partition_begin + j;
    const int32_t slot = key % kv.block_size;
    const int64_t at =
        (int64_t{table[key / kv.block_size]} * kv.num_kv_heads + block.kv_head) * head_bytes;
    float acc[kRows] = {};
    dot_rows<kType, kRows>(work, shared.q, reinterpret_cast<const Element*>(kv.k + at) + slot, acc);
    shared.v[j] = reinterpret_cast<const Element*>(kv.v + at) + slot * padded;
    float k_scale = 1.0F;
    if constexpr (has_kv_scales(kType)) {
      const int64_t scale_at = at + padded * kv.block_size + slot * int64_t{sizeof(float)};
      constexpr float kUnit = Cache<kType>::kScaleUnit;
      k_scale = __fmul_rn(*reinterpret_cast<const float*>(kv.k + scale_at), kUnit);
      shared.v_scales[j] = __fmul_rn(*reinterpret_cast<const float*>(kv.v + scale_at), kUnit);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float score = acc[r];
      if constexpr (has_kv_scales(kType)) score = __fmul_rn(score, k_scale);
      score = __fmul_rn(score, work.args.scale);
      if (work.args.soft_cap != 0) {
        score = __fmul_rn(work.args.soft_cap, tanh_of(__fdiv_rn(score, work.args.soft_cap)));
      }
      shared.weights[r][j] = score;
    }
  }
}

// Largest and sum of the 16 lanes of a half warp, by all lanes of the warp; folded by halves.
__device__ __forceinline__ float highest_of_half(float x) {
  for (int half = 8; half >= 1; half /= 2) x = higher_of(x, __shfl_xor_sync(kAllLanes, x, half));
  return x;
}

__device__ __forceinline__ float sum_of_half(float x) {
  for (int half = 8; half >= 1; half /= 2) x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, half));
  return x;
}

// Turns a row's scores of one partition into weights and gives its m and l, by one warp: each half
// takes every other tile. A tile that the row does not see changes neither: its c is exp(0) = 1.
// scales: of V, null: none.
__device__ __forceinline__ RowState weigh_row(float* scores,
                                              const float* scales,
                                              KeyRange visible,
                                              float* rescale) {
  const int lane = static_cast<int>(threadIdx.x % 16);
  const int half = static_cast<int>(threadIdx.x % 32 / 16);
  RowState state{.m = kLowest, .l = 0};
  for (int32_t pair = 0; pair < kTiles; pair += 2) {
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
      scores[j] = scales != nullptr ? __fmul_rn(weight, scales[j]) : weight;
    }
    sum = sum_of_half(sum);
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

// Where a row's part of a partition is kept for the merge.
__device__ __forceinline__ float* partial_of(const Work& work, int32_t partition, int32_t r) {
  const int64_t slot = int64_t{blockIdx.x} * work.partitions + partition;
  return work.partials + (slot * work.rows_per_block + r) * (int64_t{work.args.kv.head_dim} + 2);
}

// Weighs the rows of one partition, a warp every kWarps-th row; states[i] is the merged one of the
// warp's row i.
template <DType kType, int kRows>
__device__ __forceinline__ void weigh_rows(const Work& work,
                                           const RowBlock& block,
                                           int32_t partition_begin,
                                           const Shared<kType, kRows>& shared,
                                           RowState (&states)[kRows / kWarps]) {
  const bool first_lane = threadIdx.x % 32 == 0;
#pragma unroll
  for (int i = 0; i < kRows / kWarps; ++i) {
    const int32_t r = static_cast<int32_t>(threadIdx.x / 32) + i * kWarps;
    KeyRange visible{0, 0};
    if (r < block.num_rows) {
      const KeyRange keys = visible_keys(work, block, r);
      visible = keys_within(keys, partition_begin, kAttentionPartition);
    }
    if (visible.end == 0) {
      if (first_lane) shared.join[r] = Join::kNone;
      continue;
    }
    const RowState next = weigh_row(shared.weights[r],
                                    has_kv_scales(kType) ? shared.v_scales : nullptr,
                                    visible,
                                    shared.rescale[r]);
    if (work.partials != nullptr) {
      float* const partial = partial_of(work, static_cast<int32_t>(blockIdx.y), r);
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

// acc[r] += the keys `keys` of a partition in order, for element d of V; kCheck: each row only
// those that it sees.
template <bool kCheck, DType kType, int kRows, int kTogether>
__device__ __forceinline__ void add_values(const Shared<kType, kRows>& shared,
                                           int32_t d,
                                           int32_t first_row,
                                           KeyRange keys,
                                           const KeyRange (&visible)[kTogether],
                                           float (&acc)[kTogether]) {
#pragma unroll 8
  for (int32_t j = keys.begin; j < keys.end; ++j) {
    const float value = Cache<kType>::value(shared.v[j][d]);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (kCheck && (j < visible[i].begin || j >= visible[i].end)) continue;
      acc[i] = __fmaf_rn(shared.weights[first_row + i][j], value, acc[i]);
    }
  }
}

// The output of one partition: a thread takes some d for kTogether rows.
template <DType kType, int kRows>
__device__ __forceinline__ void weigh_values(const Work& work,
                                             const RowBlock& block,
                                             int32_t partition_begin,
                                             const Shared<kType, kRows>& shared) {
  constexpr int kTogether = rows_together(kRows);
  const int32_t width = work.args.kv.head_dim;
  for (auto item = static_cast<int32_t>(threadIdx.x); item < width * (kRows / kTogether);
       item += kThreads) {
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
      if (work.partials != nullptr) {
        partial_of(work, static_cast<int32_t>(blockIdx.y), r)[d] = acc[i];
        continue;
      }
      float& output = shared.output[r * work.head_stride + d];
      output = join == Join::kStart ? acc[i] : merged(shared.factors[r], output, acc[i]);
    }
  }
}

// What is left to do with a row's output when all partitions are merged.
template <DType kType, int kRows>
__device__ __forceinline__ void finish_rows(const Work& work,
                                            const RowBlock& block,
                                            const Shared<kType, kRows>& shared,
                                            RowState (&states)[kRows / kWarps]) {
#pragma unroll
  for (int i = 0; i < kRows / kWarps; ++i) {
    const int32_t r = static_cast<int32_t>(threadIdx.x / 32) + i * kWarps;
    if (threadIdx.x % 32 == 0 && r < block.num_rows) {
      shared.finish[r] = finish_of(sink_of(work, block, r), states[i]);
    }
  }
  __syncthreads();
  const int32_t width = work.args.kv.head_dim;
  // The threads and elements of weigh_values.
  constexpr int kTogether = rows_together(kRows);
  for (auto item = static_cast<int32_t>(threadIdx.x); item < width * (kRows / kTogether);
       item += kThreads) {
    const int32_t d = item % width;
    for (int i = 0; i < kTogether; ++i) {
      const int32_t r = item / width * kTogether + i;
      if (r >= block.num_rows) break;
      work.args.out[head_at(work, block, r, work.args.out_stride) + d] =
          finished(shared.finish[r], shared.output[r * work.head_stride + d]);
    }
  }
}

template <DType kType, int kRows>
__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const __grid_constant__ Work work) {
  const RowBlock block = find_rows(work);
  if (block.num_rows == 0) return;
  const KeyRange keys = visible_to_any(work, block);
  int32_t partition = keys.begin / kAttentionPartition;
  int32_t last = (keys.end - 1) / kAttentionPartition;
  if (work.partials != nullptr) {
    partition += static_cast<int32_t>(blockIdx.y);
    if (partition > last) return;
    last = partition;
  }
  const Shared<kType, kRows> shared = carve<kType, kRows>(work);
  load_queries(work, block, shared);
  __syncthreads();
  RowState states[kRows / kWarps];
#pragma unroll
  for (RowState& state : states) state = {.m = kLowest, .l = 0};
  for (; partition <= last; ++partition) {
    const int32_t begin = partition * kAttentionPartition;
    score_keys(work, block, begin, shared);
    __syncthreads();
    weigh_rows(work, block, begin, shared, states);
    __syncthreads();
    weigh_values(work, block, begin, shared);
    __syncthreads();
  }
  if (work.partials == nullptr) finish_rows(work, block, shared, states);
}

// A row of a row block along y. Every thread folds m and l for itself, and o of its d.
__global__ void __launch_bounds__(kThreads, 1) merge_kernel(const __grid_constant__ Work work) {
  const RowBlock block = find_rows(work);
  const auto r = static_cast<int32_t>(blockIdx.y);
  if (r >= block.num_rows) return;
  const KeyRange keys = visible_keys(work, block, r);
  const int32_t base = visible_to_any(work, block).begin / kAttentionPartition;
  const int32_t first = keys.begin / kAttentionPartition - base;
  const int32_t last = (keys.end - 1) / kAttentionPartition - base;
  const int32_t width = work.args.kv.head_dim;
  float* const out = work.args.out + head_at(work, block, r, work.args.out_stride);
  for (auto d = static_cast<int32_t>(threadIdx.x); d < width; d += kThreads) {
    const float* partial = partial_of(work, first, r);
    RowState state{.m = partial[width], .l = partial[width + 1]};
    float output = partial[d];
    for (int32_t partition = first + 1; partition <= last; ++partition) {
      partial = partial_of(work, partition, r);
      const MergeFactors factors = merge_factors(state.m, partial[width]);
      output = merged(factors, output, partial[d]);
      state = {.m = factors.m, .l = merged(factors, state.l, partial[width + 1])};
    }
    out[d] = finished(finish_of(sink_of(work, block, r), state), output);
  }
}

constexpr int32_t kFewRows = 4;
constexpr int32_t kSomeRows = 8;
constexpr int32_t kManyRows = 16;
// Below this many blocks, partitions have blocks of their own: some for each of 132 SMs.
constexpr int64_t kEnoughBlocks = 512;

// What a launch and its workspace are made from.
struct Plan {
  int32_t rows_per_block;
  int64_t blocks;      // row blocks times KV heads
  int32_t partitions;  // that the rows of one block see
};

Plan plan_of(const AttentionLimits& limits, int32_t window) {
  const int64_t group = limits.num_heads / limits.num_kv_heads;
  // In a mixed step decodes may get the shape of the prefill.
  const int64_t rows = group * ceil_div(limits.num_tokens, limits.num_reqs);
  const int32_t per_block = rows <= kFewRows ? kFewRows : rows <= kSomeRows ? kSomeRows : kManyRows;
  // find_rows: one more for each request than whole blocks of rows.
  const int64_t row_blocks = limits.num_tokens * group / per_block + limits.num_reqs;
  int64_t partitions = ceil_div(limits.seq_len, kAttentionPartition);
  if (window > 0) {
    const int64_t tokens = ceil_div(per_block - 1, group) + 1;
    const int64_t keys = window + tokens - 1;
    partitions = std::min(partitions, ceil_div(keys - 1, kAttentionPartition) + 1);
  }
  return {.rows_per_block = per_block,
          .blocks = row_blocks * limits.num_kv_heads,
          .partitions = static_cast<int32_t>(partitions)};
}

template <DType kType>
void start(Stream stream, const Work& work, const Plan& plan) {
  const gpu::LaunchShape shape{.blocks_x = plan.blocks,
                               .blocks_y = work.partials == nullptr ? 1 : plan.partitions,
                               .threads = kThreads,
                               .shared_bytes = plan.rows_per_block *
                                               (2 * work.head_stride + kAttentionPartition) *
                                               int64_t{sizeof(float)}};
  switch (plan.rows_per_block) {
    case kFewRows:
      return gpu::launch(stream, shape, attention_kernel<kType, kFewRows>, work);
    case kSomeRows:
      return gpu::launch(stream, shape, attention_kernel<kType, kSomeRows>, work);
    default:
      return gpu::launch(stream, shape, attention_kernel<kType, kManyRows>, work);
  }
}

void start_typed(Stream stream, const Work& work, const Plan& plan) {
  switch (work.args.kv.dtype) {
    case DType::kF32:
      return start<DType::kF32>(stream, work, plan);
    case DType::kF16:
      return start<DType::kF16>(stream, work, plan);
    case DType::kBF16:
      return start<DType::kBF16>(stream, work, plan);
    case DType::kI8:
      return start<DType::kI8>(stream, work, plan);
    case DType::kF8E4M3:
      return start<DType::kF8E4M3>(stream, work, plan);
    case DType::kI32:
      break;
  }
  SLUICE_UNREACHABLE("a KV cache of int32");
}

}  // namespace

int64_t attention_workspace_bytes(const AttentionLimits& limits, int32_t window) {
  if (limits.num_tokens == 0) return 0;
  const Plan plan = plan_of(limits, window);
  if (plan.partitions == 1 || plan.blocks >= kEnoughBlocks) return 0;
  return plan.blocks * plan.partitions * plan.rows_per_block * (int64_t{limits.head_dim} + 2) *
         int64_t{sizeof(float)};
}

void launch_attention(Stream stream, const AttentionArgs& args, const AttentionLimits& limits) {
  CHECK(args.then == nullptr);
  CHECK(limits.num_heads == args.num_heads && limits.num_kv_heads == args.kv.num_kv_heads);
  CHECK(limits.head_dim == args.kv.head_dim);
  if (limits.num_tokens == 0) return;
  const Plan plan = plan_of(limits, args.window);
  const int64_t bytes = attention_workspace_bytes(limits, args.window);
  const bool split = bytes > 0 && !args.workspace.empty();
  if (split) CHECK_LE(bytes, static_cast<int64_t>(args.workspace.size()));
  const Work work{.args = args,
                  .num_reqs = static_cast<int32_t>(args.seq_lens.size()),
                  .group = args.num_heads / args.kv.num_kv_heads,
                  .rows_per_block = plan.rows_per_block,
                  .head_stride = static_cast<int32_t>(cached_head_dim(args.kv.head_dim)),
                  .partials = split ? reinterpret_cast<float*>(args.workspace.data()) : nullptr,
                  .partitions = plan.partitions};
  start_typed(stream, work, plan);
  if (!split) return;
  gpu::launch(stream,
              {.blocks_x = plan.blocks, .blocks_y = plan.rows_per_block, .threads = kThreads},
              merge_kernel,
              work);
}

}  // namespace sluice::kernels::cuda
