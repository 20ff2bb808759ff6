// SPDX-License-Identifier: Apache-2.0
#include "kernels/latent_index.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "kernels/cpu/attention/cache_row.h"
#include "kernels/cpu/attention/index_block.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice::kernels {
namespace cpu {
namespace {

constexpr int64_t kTileKeys = 64;

// One worker's scratch memory, each part from a multiple of 64 bytes on.
struct Scratch {
  float* queries = nullptr;
  float* weights = nullptr;
  float* tile = nullptr;
  float* scores = nullptr;
  uint64_t* order = nullptr;
  int64_t bytes = 0;

  Scratch(std::byte* base, int32_t seq_len, int32_t num_heads, int32_t dim) {
    const auto take = [&](int64_t size) {
      std::byte* const at = base == nullptr ? nullptr : base + bytes;
      bytes += align_up(size, 64);
      return at;
    };
    const auto floats = [&](int64_t count) {
      return reinterpret_cast<float*>(take(count * static_cast<int64_t>(sizeof(float))));
    };
    queries = floats(index_heads(num_heads) * dim);
    weights = floats(index_heads(num_heads));
    tile = floats(kTileKeys * dim);
    scores = floats(seq_len);
    order = reinterpret_cast<uint64_t*>(take(seq_len * static_cast<int64_t>(sizeof(uint64_t))));
  }
};

// Orders like scores, and equal ones by falling position: no two are equal.
uint64_t rank_of(float score, int32_t position) {
  constexpr uint32_t kSign = 0x80000000U;
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);
  const uint32_t ordered = (bits & kSign) != 0 ? ~bits : bits | kSign;
  return uint64_t{ordered} << 32 | (UINT32_MAX - static_cast<uint32_t>(position));
}

void choose_all(uint64_t* words, int32_t num_keys) {
  for (int32_t first = 0; first < num_keys; first += 64) {
    const int32_t left = num_keys - first;
    words[first / 64] = left >= 64 ? UINT64_MAX : (uint64_t{1} << left) - 1;
  }
}

void choose_best(const Scratch& scratch, int32_t num_keys, int32_t top_k, uint64_t* words) {
  for (int32_t j = 0; j < num_keys; ++j) scratch.order[j] = rank_of(scratch.scores[j], j);
  std::nth_element(
      scratch.order, scratch.order + top_k, scratch.order + num_keys, std::greater<>());
  std::fill_n(words, chosen_words(num_keys), uint64_t{0});
  for (int32_t i = 0; i < top_k; ++i) {
    const uint32_t position = UINT32_MAX - static_cast<uint32_t>(scratch.order[i]);
    words[position / 64] |= uint64_t{1} << position % 64;
  }
}

// Lays the queries out with a head in each lane.
void lay_out_query(const ChooseKeysArgs& args, int64_t token, const Scratch& scratch) {
  const float* const q = args.q + token * args.q_stride;
  const float* const weights = args.weights + token * args.weights_stride;
  const int32_t dim = args.cache.dim;
  for (int32_t head = 0; head < index_heads(args.num_heads); ++head) {
    const bool exists = head < args.num_heads;
    scratch.weights[head] = exists ? weights[head] : 0.0F;
    float* const out = scratch.queries +
                       int64_t{head / kAttentionMaxRows} * dim * kAttentionMaxRows +
                       head % kAttentionMaxRows;
    for (int32_t d = 0; d < dim; ++d) {
      out[int64_t{d} * kAttentionMaxRows] = exists ? q[int64_t{head} * dim + d] : 0.0F;
    }
  }
}

void choose_for(const SimdTable& simd,
                const ChooseKeysArgs& args,
                int64_t token,
                const Scratch& scratch) {
  const auto next = std::ranges::upper_bound(args.query_start_loc, token);
  const int64_t req = next - args.query_start_loc.begin() - 1;
  const auto behind = static_cast<int32_t>(*next - token - 1);  // tokens of the request
  const int32_t num_keys = args.seq_lens[static_cast<size_t>(req)] - behind;
  uint64_t* const words = args.out.words + token * args.out.stride;
  if (num_keys <= args.top_k) return choose_all(words, num_keys);
  lay_out_query(args, token, scratch);
  const IndexKeyView& cache = args.cache;
  simd.index_block({.queries = scratch.queries,
                    .weights = scratch.weights,
                    .keys = cache.data,
                    .block_table = args.block_table + req * args.block_table_stride,
                    .block_bytes = kv_head_bytes(cache.dtype, cache.dim, cache.block_size),
                    .dtype = cache.dtype,
                    .block_size = cache.block_size,
                    .dim = cache.dim,
                    .num_heads = args.num_heads,
                    .num_keys = num_keys,
                    .tile = scratch.tile,
                    .scores = scratch.scores});
  choose_best(scratch, num_keys, args.top_k, words);
}

}  // namespace

void index_rows(const ExecContext& ctx, const IndexRowsArgs& args) {
  constexpr int64_t kTokensPerClaim = 4;
  const SimdTable& simd = simd_table(ctx.isa);
  const IndexKeyView& cache = args.cache;
  const auto one = [&](int64_t token) {
    const int32_t position = args.positions[static_cast<size_t>(token)];
    float* const k = args.k + token * args.k_stride;
    simd.norm_in_place(k,
                       {.weight = args.norm_weight,
                        .bias = args.norm_bias,
                        .eps = args.norm_eps,
                        .subtracts_mean = true},
                       cache.dim);
    RopeRow row{.x = k,
                .cos = args.table->cos_row(position),
                .sin = args.table->sin_row(position),
                .num_heads = 1,
                .head_dim = cache.dim,
                .num_pairs = args.table->num_pairs(),
                .halves = args.style == RopeStyle::kHalves};
    simd.rope_row(row);
    const int64_t slot = args.slot_mapping[static_cast<size_t>(token)];
    if (slot >= 0) cache_row({cache.data, cache.dtype, cache.block_size, cache.dim}, slot, k);
    row.x = args.q + token * args.q_stride;
    row.num_heads = args.num_heads;
    simd.rope_row(row);
  };
  ctx.pool->parallel_for_chunked(static_cast<int64_t>(args.positions.size()),
                                 {.chunk = kTokensPerClaim},
                                 [&](int64_t begin, int64_t end, int32_t) {
                                   for (int64_t token = begin; token < end; ++token) one(token);
                                 });
}

void choose_keys(const ExecContext& ctx, const ChooseKeysArgs& args) {
  DCHECK(args.query_start_loc.size() == args.seq_lens.size() + 1);
  const SimdTable& simd = simd_table(ctx.isa);
  const int32_t longest = std::ranges::max(args.seq_lens);
  const int64_t bytes = Scratch(nullptr, longest, args.num_heads, args.cache.dim).bytes;
  CHECK_LE(bytes * ctx.pool->num_threads(), static_cast<int64_t>(args.workspace.size()));
  ctx.pool->parallel_for(args.query_start_loc.back(), [&](int64_t token, int32_t worker) {
    const Scratch scratch(
        args.workspace.data() + worker * bytes, longest, args.num_heads, args.cache.dim);
    choose_for(simd, args, token, scratch);
  });
}

}  // namespace cpu

int64_t choose_keys_workspace_bytes(const ChooseKeysLimits& limits) {
  return limits.num_threads *
         cpu::Scratch(nullptr, limits.seq_len, limits.num_heads, limits.dim).bytes;
}

}  // namespace sluice::kernels
