// SPDX-License-Identifier: Apache-2.0
// The rows of latent attention and of its indexer: what is cached of a token and its heads'
// queries, a block for what is cached and one for each kHeads heads; and the heads' values side by
// side again. Slots and positions are read before wait_for_launches (rope.cu).
#include "engine/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_rows.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rope_rows.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {

namespace ptx = gpu::ptx;

namespace {

constexpr int kThreads = 128;
constexpr int32_t kHeads = 4;  // of a block, a warp each
static_assert(kThreads == 32 * kHeads);

struct LatentRowsWork {
  LatentRowsArgs args;
  RopeRows rows;
};

// A token's place in the cache and in the table; slot below 0: none.
struct TokenPlace {
  int64_t slot;
  int32_t position;
};

__device__ __forceinline__ TokenPlace place_of(const LatentRowsArgs& args, int64_t token) {
  const int64_t slot = args.slot_mapping.data()[token];
  return {slot, slot < 0 ? 0 : args.positions.data()[token]};
}

struct Pair {
  float first;
  float second;
};

// Returns pair `i` of x, rotated: its elements are 2 i and the next, or i and num_pairs + i.
__device__ __forceinline__ Pair rotated(const float* x,
                                        const RopeRows& rows,
                                        int32_t position,
                                        int32_t i) {
  const bool halves = rows.style == RopeStyle::kHalves;
  const float a = x[halves ? i : 2 * i];
  const float b = x[halves ? i + rows.num_pairs : 2 * i + 1];
  const int64_t at = int64_t{position} * rows.num_pairs + i;
  const float cos = rows.cos[at];
  const float sin = rows.sin[at];
  return {__fmaf_rn(a, cos, -__fmul_rn(b, sin)), __fmaf_rn(a, sin, __fmul_rn(b, cos))};
}

// Rotates the first pairs of x in place, thread `first` of `threads` every so many.
__device__ __forceinline__ void rotate_in_place(
    float* x, const RopeRows& rows, int32_t position, int32_t first, int32_t threads) {
  const bool halves = rows.style == RopeStyle::kHalves;
  for (int32_t i = first; i < rows.num_pairs; i += threads) {
    const Pair pair = rotated(x, rows, position, i);
    x[halves ? i : 2 * i] = pair.first;
    x[halves ? i + rows.num_pairs : 2 * i + 1] = pair.second;
  }
}

// Writes `n` elements of a row to its slot of a plane in token order, then zeros, by all
// threads of the block.
template <DType kType>
__device__ __forceinline__ void write_plane(std::byte* plane,
                                            int32_t n,
                                            int64_t slot,
                                            const float* x) {
  const auto width = static_cast<int32_t>(cached_head_dim(n));
  std::byte* const to = plane + slot * width * static_cast<int64_t>(dtype_bytes(kType));
  for (auto i = static_cast<int32_t>(threadIdx.x); i < width; i += kThreads) {
    const float value = i < n ? x[i] : 0.0F;
    if constexpr (kType == DType::kF32) {
      reinterpret_cast<float*>(to)[i] = value;
    } else if constexpr (kType == DType::kF16) {
      reinterpret_cast<uint16_t*>(to)[i] = to_half(value);
    } else {
      reinterpret_cast<uint16_t*>(to)[i] = to_bf16(value);
    }
  }
}

// Norms and rotates the row of a token and caches it.
template <DType kType>
__device__ __forceinline__ void cache_token(const LatentRowsWork& work,
                                            int64_t token,
                                            const TokenPlace& place) {
  GPU_DYN_SHARED_ARRAY(float, staged);
  const LatentRowsArgs& args = work.args;
  const LatentKvView& cache = args.cache;
  const int32_t latent = cache.latent_dim;
  float* const kv = args.kv + token * args.kv_stride;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < latent; i += kThreads) staged[i] = kv[i];
  const float r = inverse_rms_of_block(staged, latent, args.norm_eps);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < latent; i += kThreads) {
    staged[i] = __fmul_rn(__fmul_rn(staged[i], r), args.norm[i]);
    kv[i] = staged[i];
  }
  float* const key = staged + latent;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < cache.rope_dim; i += kThreads) key[i] = kv[latent + i];
  __syncthreads();
  if (work.rows.cos != nullptr) rotate_in_place(key, work.rows, place.position, thread, kThreads);
  __syncthreads();
  for (int32_t i = thread; i < cache.rope_dim; i += kThreads) kv[latent + i] = key[i];
  write_plane<kType>(cache.latent, latent, place.slot, staged);
  write_plane<kType>(cache.rope, cache.rope_dim, place.slot, key);
}

// Lays out a head's query, by its warp.
__device__ __forceinline__ void lay_out_head(const LatentRowsWork& work,
                                             int64_t token,
                                             const TokenPlace& place,
                                             int32_t head) {
  const LatentRowsArgs& args = work.args;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t rope = args.cache.rope_dim;
  const float* const q = args.q + token * args.q_stride + int64_t{head} * (args.nope_dim + rope);
  float* const nope = args.nope.data + head * args.nope.head_stride + token * args.nope.stride;
  float* const turned = args.query.data + head * args.query.head_stride +
                        token * args.query.stride + args.cache.latent_dim;
  const bool scales = work.rows.query_scales != nullptr;
  const float scale = scales ? work.rows.query_scales[place.position] : 1.0F;
  const auto padded = static_cast<int32_t>(align_up(args.nope_dim, kQuantGroup));
  for (int32_t i = lane; i < padded; i += 32) {
    nope[i] = i < args.nope_dim ? __fmul_rn(q[i], scale) : 0.0F;
  }
  if (work.rows.cos == nullptr) {
    for (int32_t i = lane; i < rope; i += 32) turned[i] = q[args.nope_dim + i];
    return;
  }
  const bool halves = work.rows.style == RopeStyle::kHalves;
  const int32_t pairs = work.rows.num_pairs;
  for (int32_t i = lane; i < pairs; i += 32) {
    const Pair pair = rotated(q + args.nope_dim, work.rows, place.position, i);
    turned[halves ? i : 2 * i] = __fmul_rn(pair.first, scale);
    turned[halves ? i + pairs : 2 * i + 1] = __fmul_rn(pair.second, scale);
  }
}

__device__ __forceinline__ void list_heads(const LatentRowsArgs& args) {
  const ExpertRows& heads = args.heads;
  const auto apart = static_cast<int32_t>(args.nope.head_stride / args.nope.stride);
  for (auto head = static_cast<int32_t>(threadIdx.x); head < args.num_heads; head += kThreads) {
    heads.first[head] = head * apart;
    heads.count[head] = static_cast<int32_t>(gridDim.x);
    heads.chosen[head] = head;
  }
  if (threadIdx.x == 0) *heads.num_chosen = args.num_heads;
}

template <DType kType>
__global__ void __launch_bounds__(kThreads, 1)
    latent_rows_kernel(const __grid_constant__ LatentRowsWork work) {
  const int64_t token = blockIdx.x;
  ptx::start_next_launch();
  const TokenPlace place = place_of(work.args, token);
  ptx::wait_for_launches();
  if (blockIdx.y == 0) {
    if (token == 0 && work.args.heads.first != nullptr) list_heads(work.args);
    if (place.slot >= 0) cache_token<kType>(work, token, place);
    return;
  }
  const int32_t head =
      (static_cast<int32_t>(blockIdx.y) - 1) * kHeads + static_cast<int32_t>(threadIdx.x / 32);
  if (head < work.args.num_heads && place.slot >= 0) lay_out_head(work, token, place, head);
}

struct IndexRowsWork {
  IndexRowsArgs args;
  RopeRows rows;  // in the style of args
};

// Norms and rotates the key of a token and caches it.
template <DType kType>
__device__ __forceinline__ void cache_index_key(const IndexRowsWork& work,
                                                int64_t token,
                                                const TokenPlace& place) {
  GPU_DYN_SHARED_ARRAY(float, staged);
  const IndexRowsArgs& args = work.args;
  const int32_t dim = args.cache.dim;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  float* const k = args.k + token * args.k_stride;
  for (int32_t i = thread; i < dim; i += kThreads) staged[i] = k[i];
  subtract_mean_of_block(staged, dim);
  const float r = inverse_rms_of_block(staged, dim, args.norm_eps);
  for (int32_t i = thread; i < dim; i += kThreads) {
    const float scaled = __fmul_rn(__fmul_rn(staged[i], r), args.norm_weight[i]);
    staged[i] = __fadd_rn(scaled, args.norm_bias[i]);
  }
  __syncthreads();
  rotate_in_place(staged, work.rows, place.position, thread, kThreads);
  __syncthreads();
  for (int32_t i = thread; i < dim; i += kThreads) k[i] = staged[i];
  write_plane<kType>(args.cache.data, dim, place.slot, staged);
}

template <DType kType>
__global__ void __launch_bounds__(kThreads, 1)
    index_rows_kernel(const __grid_constant__ IndexRowsWork work) {
  const IndexRowsArgs& args = work.args;
  const int64_t token = blockIdx.x;
  ptx::start_next_launch();
  const int64_t slot = args.slot_mapping.data()[token];
  const TokenPlace place{slot, slot < 0 ? 0 : args.positions.data()[token]};
  ptx::wait_for_launches();
  if (place.slot < 0) return;
  if (blockIdx.y == 0) return cache_index_key<kType>(work, token, place);
  const int32_t head =
      (static_cast<int32_t>(blockIdx.y) - 1) * kHeads + static_cast<int32_t>(threadIdx.x / 32);
  if (head >= args.num_heads) return;
  float* const q = args.q + token * args.q_stride + int64_t{head} * args.cache.dim;
  rotate_in_place(q, work.rows, place.position, static_cast<int32_t>(threadIdx.x % 32), 32);
}

__global__ void __launch_bounds__(kThreads, 1)
    join_heads_kernel(const __grid_constant__ JoinHeadsArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const int64_t token = blockIdx.x;
  const int32_t head =
      static_cast<int32_t>(blockIdx.y) * kHeads + static_cast<int32_t>(threadIdx.x / 32);
  if (head >= args.num_heads) return;
  const float* const from =
      args.rows.data + head * args.rows.head_stride + token * args.rows.stride;
  float* const to = args.out + token * args.out_stride + int64_t{head} * args.width;
  for (auto i = static_cast<int32_t>(threadIdx.x % 32); i < args.width; i += 32) to[i] = from[i];
}

}  // namespace

void launch_latent_rows(Stream stream, const LatentRowsArgs& args, const RopeRows& rows) {
  const LatentKvView& cache = args.cache;
  CHECK(rows.cos == nullptr || 2 * rows.num_pairs == cache.rope_dim);
  const auto tokens = static_cast<int64_t>(args.positions.size());
  const gpu::LaunchShape shape{
      .blocks_x = tokens,
      .blocks_y = 1 + ceil_div(args.num_heads, kHeads),
      .threads = kThreads,
      .shared_bytes = (int64_t{cache.latent_dim} + cache.rope_dim) * int64_t{sizeof(float)},
      .overlaps = overlaps(LaunchKind::kRows, tokens)};
  const LatentRowsWork work{.args = args, .rows = rows};
  with_float_type(cache.dtype, [&]<DType kType>() {
    gpu::launch(stream, shape, latent_rows_kernel<kType>, work);
  });
}

void launch_index_rows(Stream stream, const IndexRowsArgs& args, const RopeRows& rows) {
  CHECK_LE(2 * rows.num_pairs, args.cache.dim);
  const auto tokens = static_cast<int64_t>(args.positions.size());
  const gpu::LaunchShape shape{.blocks_x = tokens,
                               .blocks_y = 1 + ceil_div(args.num_heads, kHeads),
                               .threads = kThreads,
                               .shared_bytes = args.cache.dim * int64_t{sizeof(float)},
                               .overlaps = overlaps(LaunchKind::kRows, tokens)};
  IndexRowsWork work{.args = args, .rows = rows};
  work.rows.style = args.style;
  with_float_type(args.cache.dtype, [&]<DType kType>() {
    gpu::launch(stream, shape, index_rows_kernel<kType>, work);
  });
}

void launch_join_heads(Stream stream, const JoinHeadsArgs& args) {
  gpu::launch(stream,
              {.blocks_x = args.num_tokens,
               .blocks_y = ceil_div(args.num_heads, kHeads),
               .threads = kThreads,
               .overlaps = overlaps(LaunchKind::kRows, args.num_tokens)},
              join_heads_kernel,
              args);
}

}  // namespace sluice::kernels::cuda
