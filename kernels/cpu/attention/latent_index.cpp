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
constexpr int64_t kKeysPerClaim = 2 * kTileKeys;

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

// A token's request, and the keys that it sees.
struct Seen {
  int64_t req;
  int32_t num_keys;

  Seen(const ChooseKeysArgs& args, int64_t token) {
    const auto next = std::ranges::upper_bound(args.query_start_loc, token);
    req = next - args.query_start_loc.begin() - 1;
    const auto behind = static_cast<int32_t>(*next - token - 1);  // tokens of the request
    num_keys = args.seq_lens[static_cast<size_t>(req)] - behind;
  }
};

// Scores `count` keys from `first`, a multiple of a tile, by the query laid out in `query`; `own`:
// this worker's.
void score_keys(const SimdTable& simd,
                const ChooseKeysArgs& args,
                int64_t req,
                int32_t first,
                int32_t count,
                const Scratch& query,
                const Scratch& own) {
  const IndexKeyView& cache = args.cache;
  simd.index_block(
      {.queries = query.queries,
       .weights = query.weights,
       .keys = cache.data,
       .block_table = args.block_table + req * args.block_table_stride + first / cache.block_size,
       .block_bytes = kv_head_bytes(cache.dtype, cache.dim, cache.block_size),
       .dtype = cache.dtype,
       .block_size = cache.block_size,
       .dim = cache.dim,
       .num_heads = args.num_heads,
       .num_keys = count,
       .tile = own.tile,
       .scores = query.scores + first});
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
  const auto scratch_of = [&](int32_t worker) {
    return Scratch(args.workspace.data() + worker * bytes, longest, args.num_heads, args.cache.dim);
  };
  const auto words_of = [&](int64_t token) { return args.out.words + token * args.out.stride; };
  const int64_t tokens = args.query_start_loc.back();
  if (tokens >= ctx.pool->num_threads()) {
    return ctx.pool->parallel_for(tokens, [&](int64_t token, int32_t worker) {
      const Seen seen(args, token);
      if (seen.num_keys <= args.top_k) return choose_all(words_of(token), seen.num_keys);
      const Scratch scratch = scratch_of(worker);
      lay_out_query(args, token, scratch);
      score_keys(simd, args, seen.req, 0, seen.num_keys, scratch, scratch);
      choose_best(scratch, seen.num_keys, args.top_k, words_of(token));
    });
  }
  // All threads score the keys of a token where there are few.
  const Scratch query = scratch_of(0);
  for (int64_t token = 0; token < tokens; ++token) {
    const Seen seen(args, token);
    if (seen.num_keys <= args.top_k) {
      choose_all(words_of(token), seen.num_keys);
      continue;
    }
    lay_out_query(args, token, query);
    ctx.pool->parallel_for(ceil_div(seen.num_keys, kKeysPerClaim),
                           [&](int64_t part, int32_t worker) {
                             const auto first = static_cast<int32_t>(part * kKeysPerClaim);
                             const int32_t left = seen.num_keys - first;
                             score_keys(simd,
                                        args,
                                        seen.req,
                                        first,
                                        std::min<int32_t>(left, kKeysPerClaim),
                                        query,
                                        scratch_of(worker));
                           });
    choose_best(query, seen.num_keys, args.top_k, words_of(token));
  }
}

int64_t choose_keys_workspace_bytes(const ChooseKeysLimits& limits) {
  return limits.num_threads * Scratch(nullptr, limits.seq_len, limits.num_heads, limits.dim).bytes;
}

}  // namespace cpu
}  // namespace sluice::kernels
