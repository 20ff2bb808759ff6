// SPDX-License-Identifier: Apache-2.0
// The choice of keys of kernels/latent_index.h with the CPU's bits, for some tokens at a time:
// their scores, a block for some tokens and 64 keys at a time, then a block a token that finds its
// top_k-th score by four digits and turns scores into bits.
#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/order.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {

namespace ptx = gpu::ptx;

namespace {

constexpr int kScoreThreads = 128;
constexpr int32_t kKeys = 64;  // of a tile
constexpr int32_t kKeysTogether = 4;
constexpr int32_t kLanes = 16;  // of the definition
constexpr int32_t kTokensInTurn = 8;
constexpr int kChooseThreads = 256;
constexpr int kChooseWarps = kChooseThreads / 32;
constexpr int32_t kBins = 256;
constexpr int64_t kMostScores = int64_t{128} << 20;  // bytes
// Tiles make at most about this many blocks. A recorded step has tiles for the longest possible
// context, and blocks without keys cost as much as starting them.
constexpr int64_t kMostScoreBlocks = 2048;
static_assert(kKeys / kKeysTogether * kLanes / 2 == kScoreThreads);

// The floats of a block's shared memory, which has room for the largest indexer on every device.
constexpr int64_t score_floats(int64_t num_heads, int64_t dim) {
  return (kKeys + num_heads) * dim + kLanes * kKeys;
}

constexpr int64_t kLeastShared = int64_t{99} << 10;  // bytes of a block, on sm_86 and sm_120
static_assert(score_floats(kMaxIndexHeads, kMaxIndexDim) * int64_t{sizeof(float)} <= kLeastShared);

struct IndexWork {
  ChooseKeysArgs args;
  int32_t num_reqs;
  int32_t first_token;
  int32_t num_tokens;  // from there on
  int64_t stride;      // of the scores
  float* scores;       // [num_tokens][stride]
};

// A token's request and the keys that it sees; without a request none.
struct Seen {
  int32_t request;
  int32_t num_keys;
};

__device__ __forceinline__ Seen seen_by(const IndexWork& work, int32_t token) {
  GPU_SHARED(int32_t, found, 1);
  const int32_t* const starts = work.args.query_start_loc.data();
  __syncthreads();
  if (threadIdx.x == 0) found[0] = -1;
  __syncthreads();
  for (auto r = static_cast<int32_t>(threadIdx.x); r < work.num_reqs;
       r += static_cast<int32_t>(blockDim.x)) {
    if (starts[r] <= token && starts[r + 1] > token) found[0] = r;
  }
  __syncthreads();
  const int32_t request = found[0];
  if (request < 0) return {request, 0};
  return {request, work.args.seq_lens.data()[request] - starts[request + 1] + token + 1};
}

template <DType kType>
__device__ __forceinline__ float element_at(const std::byte* plane, int64_t at) {
  if constexpr (kType == DType::kF32) return reinterpret_cast<const float*>(plane)[at];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(plane)[at];
  return kType == DType::kF16 ? from_half(bits) : from_bf16(bits);
}

// The block's shared memory: keys [dim][kKeys], a query [heads][dim], sums [kLanes][kKeys].
struct ScoreMemory {
  float* keys;
  float* query;
  float* sums;

  __device__ __forceinline__ explicit ScoreMemory(const IndexWork& work) {
    GPU_DYN_SHARED_ARRAY(float, floats);
    keys = floats;
    query = keys + int64_t{kKeys} * work.args.cache.dim;
    sums = query + int64_t{work.args.num_heads} * work.args.cache.dim;
  }
};

template <DType kType>
__device__ __forceinline__ void load_keys(const IndexWork& work,
                                          const Seen& seen,
                                          int32_t first,
                                          const ScoreMemory& shared) {
  const IndexKeyView& cache = work.args.cache;
  const int32_t* const table =
      work.args.block_table + int64_t{seen.request} * work.args.block_table_stride;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kKeys * cache.dim; i += kScoreThreads) {
    const int32_t j = i / cache.dim;
    const int32_t d = i % cache.dim;
    float value = 0;
    if (first + j < seen.num_keys) {
      const int32_t key = first + j;
      const int64_t row =
          int64_t{table[key / cache.block_size]} * cache.block_size + key % cache.block_size;
      value = element_at<kType>(cache.data, row * cache.dim + d);
    }
    shared.keys[d * kKeys + j] = value;
  }
}

// Adds the heads of lanes `lane` and `lane` + 8 for four keys.
__device__ __forceinline__ void score_four(const IndexWork& work,
                                           const float* weights,
                                           const ScoreMemory& shared) {
  const int32_t dim = work.args.cache.dim;
  const int32_t heads = work.args.num_heads;
  const auto four = static_cast<int32_t>(threadIdx.x) % (kKeys / kKeysTogether);
  const auto lane = static_cast<int32_t>(threadIdx.x) / (kKeys / kKeysTogether);
  const float* const keys = shared.keys + four * kKeysTogether;
  float total[2][kKeysTogether] = {};
  for (int32_t head = lane; head < heads; head += kLanes) {
    float acc[2][kKeysTogether] = {};
    const float* const q = shared.query + head * dim;
    const bool both = head + kLanes / 2 < heads;
    const float* const other = both ? q + kLanes / 2 * dim : q;
#pragma unroll 4
    for (int32_t d = 0; d < dim; ++d) {
      const float4 key = *reinterpret_cast<const float4*>(keys + d * kKeys);
      const float of_keys[kKeysTogether] = {key.x, key.y, key.z, key.w};
#pragma unroll
      for (int j = 0; j < kKeysTogether; ++j) {
        acc[0][j] = __fmaf_rn(q[d], of_keys[j], acc[0][j]);
        acc[1][j] = __fmaf_rn(other[d], of_keys[j], acc[1][j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kKeysTogether; ++j) {
      total[0][j] = __fmaf_rn(weights[head], higher_of(0.0F, acc[0][j]), total[0][j]);
      if (!both) continue;
      total[1][j] = __fmaf_rn(weights[head + kLanes / 2], higher_of(0.0F, acc[1][j]), total[1][j]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < kKeysTogether; ++j) {
      shared.sums[(lane + half * kLanes / 2) * kKeys + four * kKeysTogether + j] = total[half][j];
    }
  }
}

// Folds the lanes of each key by halves.
__device__ __forceinline__ void write_scores(const ScoreMemory& shared, int32_t count, float* out) {
  for (auto j = static_cast<int32_t>(threadIdx.x); j < count; j += kScoreThreads) {
    float lanes[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) lanes[i] = shared.sums[i * kKeys + j];
#pragma unroll
    for (int half = kLanes / 2; half >= 1; half /= 2) {
#pragma unroll
      for (int i = 0; i < half; ++i) lanes[i] = __fadd_rn(lanes[i], lanes[i + half]);
    }
    out[j] = lanes[0];
  }
}

// Scores a tile of keys from `first` on for up to kTokensInTurn tokens. All threads call it.
template <DType kType>
__device__ __forceinline__ void score_tile(const IndexWork& work,
                                           const ScoreMemory& shared,
                                           int32_t first) {
  const ChooseKeysArgs& args = work.args;
  Seen loaded{-1, 0};
  for (int32_t i = 0; i < kTokensInTurn; ++i) {
    const int32_t index = static_cast<int32_t>(blockIdx.y) * kTokensInTurn + i;
    if (index >= work.num_tokens) return;
    const int32_t token = work.first_token + index;
    const Seen seen = seen_by(work, token);  // with barriers
    if (seen.num_keys <= args.top_k || seen.num_keys <= first) continue;
    if (seen.request != loaded.request || loaded.num_keys < first + kKeys) {
      load_keys<kType>(work, seen, first, shared);
      loaded = seen;
    }
    const float* const q = args.q + token * args.q_stride;
    for (auto d = static_cast<int32_t>(threadIdx.x); d < args.num_heads * args.cache.dim;
         d += kScoreThreads) {
      shared.query[d] = q[d];
    }
    __syncthreads();
    score_four(work, args.weights + token * args.weights_stride, shared);
    __syncthreads();
    const int32_t left = seen.num_keys - first;
    write_scores(shared, left < kKeys ? left : kKeys, work.scores + index * work.stride + first);
  }
}

// Scores every gridDim.x-th tile for up to kTokensInTurn tokens; those that see no more than top_k
// keys take all and need no scores.
template <DType kType>
__global__ void __launch_bounds__(kScoreThreads, 1)
    index_scores_kernel(const __grid_constant__ IndexWork work) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const ScoreMemory shared(work);
  int32_t most = 0;
  for (int32_t i = 0; i < kTokensInTurn; ++i) {
    const int32_t index = static_cast<int32_t>(blockIdx.y) * kTokensInTurn + i;
    if (index >= work.num_tokens) break;
    const Seen seen = seen_by(work, work.first_token + index);  // with barriers
    if (seen.num_keys > work.args.top_k && seen.num_keys > most) most = seen.num_keys;
  }
  const auto step = static_cast<int32_t>(gridDim.x) * kKeys;
  for (auto first = static_cast<int32_t>(blockIdx.x) * kKeys; first < most; first += step) {
    score_tile<kType>(work, shared, first);
  }
}

__device__ __forceinline__ uint32_t order_of(float score) {
  return static_cast<uint32_t>(rank_of(score, 0) >> 32);
}

// What a token's chosen keys are: those in front of `least` in order, and the first `equal` of it.
struct Threshold {
  uint32_t least;
  int32_t equal;
};

// Finds the top_k-th score, digit by digit.
__device__ __forceinline__ Threshold threshold_of(const float* scores,
                                                  int32_t count,
                                                  int32_t top_k) {
  GPU_SHARED(uint32_t, bins, kBins);
  GPU_SHARED(int32_t, found, 2);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  uint32_t prefix = 0;
  int32_t left = top_k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bins[thread] = 0;
    __syncthreads();
    for (int32_t j = thread; j < count; j += kChooseThreads) {
      const uint32_t order = order_of(scores[j]);
      const bool inside = shift == 24 || order >> (shift + 8) == prefix >> (shift + 8);
      if (inside) gpu::shared_add(&bins[order >> shift & (kBins - 1)], 1U);
    }
    __syncthreads();
    int32_t above = 0;
    for (int32_t bin = thread + 1; bin < kBins; ++bin) above += static_cast<int32_t>(bins[bin]);
    const auto own = static_cast<int32_t>(bins[thread]);
    if (above < left && above + own >= left) {
      found[0] = thread;
      found[1] = left - above;
    }
    __syncthreads();
    prefix |= static_cast<uint32_t>(found[0]) << shift;
    left = found[1];
  }
  return {prefix, left};
}

static_assert(kBins == kChooseThreads);

// Returns bits of the warp's 32 lanes as a word.
__device__ __forceinline__ uint32_t bits_of_warp(bool bit) {
  const auto lane = threadIdx.x % 32;
  return static_cast<uint32_t>(
      __reduce_add_sync(kAllLanes, static_cast<int32_t>((bit ? 1U : 0U) << lane)));
}

// Writes the bits of a token's keys, half a word at a time: a warp has a run of words.
__device__ __forceinline__ void write_bits(const float* scores,
                                           int32_t count,
                                           const Threshold& threshold,
                                           uint64_t* words) {
  GPU_SHARED(int32_t, equals, kChooseWarps);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto halves = 2 * static_cast<int32_t>(chosen_words(count));
  const int32_t each = (halves + kChooseWarps - 1) / kChooseWarps;
  const int32_t begin = warp * each;
  const int32_t end = begin + each < halves ? begin + each : halves;
  const auto order_at = [&](int32_t half) {
    const int32_t key = half * 32 + lane;
    return key < count ? order_of(scores[key]) : 0U;
  };
  int32_t own = 0;
  for (int32_t half = begin; half < end; ++half) {
    own += __popc(bits_of_warp(half * 32 + lane < count && order_at(half) == threshold.least));
  }
  if (lane == 0) equals[warp] = own;
  __syncthreads();
  int32_t before = 0;
  for (int32_t w = 0; w < warp; ++w) before += equals[w];
  for (int32_t half = begin; half < end; ++half) {
    const bool exists = half * 32 + lane < count;
    const uint32_t order = order_at(half);
    const uint32_t same = bits_of_warp(exists && order == threshold.least);
    const int32_t number = before + __popc(same & ((1U << lane) - 1));
    const bool chosen = exists && (order > threshold.least ||
                                   (order == threshold.least && number < threshold.equal));
    const uint32_t bits = bits_of_warp(chosen);
    if (lane == 0) reinterpret_cast<uint32_t*>(words)[half] = bits;
    before += __popc(same);
  }
}

__global__ void __launch_bounds__(kChooseThreads, 1)
    choose_keys_kernel(const __grid_constant__ IndexWork work) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto index = static_cast<int32_t>(blockIdx.x);
  const int32_t token = work.first_token + index;
  const Seen seen = seen_by(work, token);
  uint64_t* const words = work.args.out.words + token * work.args.out.stride;
  if (seen.num_keys > work.args.top_k) {
    const float* const scores = work.scores + index * work.stride;
    return write_bits(
        scores, seen.num_keys, threshold_of(scores, seen.num_keys, work.args.top_k), words);
  }
  for (auto w = static_cast<int32_t>(threadIdx.x); w * 64 < seen.num_keys; w += kChooseThreads) {
    const int32_t left = seen.num_keys - w * 64;
    words[w] = left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
  }
}

template <DType kType>
void start(Stream stream, const IndexWork& work) {
  const ChooseKeysArgs& args = work.args;
  const int64_t floats = score_floats(args.num_heads, args.cache.dim);
  const int64_t tiles = ceil_div(args.max_seq_len, kKeys);
  const int64_t turns = ceil_div(work.num_tokens, kTokensInTurn);
  gpu::launch(stream,
              {.blocks_x = std::min(tiles, ceil_div(kMostScoreBlocks, turns)),
               .blocks_y = turns,
               .threads = kScoreThreads,
               .shared_bytes = floats * int64_t{sizeof(float)},
               .overlaps = overlaps(LaunchKind::kAttention, args.num_tokens)},
              index_scores_kernel<kType>,
              work);
}

// Bytes of a token's scores.
int64_t token_bytes(int64_t seq_len) {
  return align_up(seq_len, kKeys) * static_cast<int64_t>(sizeof(float));
}

}  // namespace

int64_t index_scores_bytes(const ChooseKeysLimits& limits) {
  const int64_t one = token_bytes(limits.seq_len);
  return std::min(limits.num_tokens * one, std::max(kMostScores, one));
}

void launch_choose_keys(Stream stream, const ChooseKeysArgs& args) {
  CHECK(args.num_heads <= kMaxIndexHeads && args.cache.dim <= kMaxIndexDim);
  const int64_t one = token_bytes(args.max_seq_len);
  const int64_t together = static_cast<int64_t>(args.workspace.size()) / one;
  CHECK(together > 0 || args.num_tokens == 0);
  for (int64_t first = 0; first < args.num_tokens; first += together) {
    const IndexWork work{
        .args = args,
        .num_reqs = static_cast<int32_t>(args.seq_lens.size()),
        .first_token = static_cast<int32_t>(first),
        .num_tokens = static_cast<int32_t>(std::min(together, args.num_tokens - first)),
        .stride = one / static_cast<int64_t>(sizeof(float)),
        .scores = reinterpret_cast<float*>(args.workspace.data())};
    if (args.max_seq_len > args.top_k) {
      with_float_type(args.cache.dtype, [&]<DType kType>() { start<kType>(stream, work); });
    }
    gpu::launch(stream,
                {.blocks_x = work.num_tokens,
                 .threads = kChooseThreads,
                 .overlaps = overlaps(LaunchKind::kAttention, args.num_tokens)},
                choose_keys_kernel,
                work);
  }
}

}  // namespace sluice::kernels::cuda
