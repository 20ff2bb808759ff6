// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <new>

#include "engine/core/status.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/linear/read_ahead.h"
#include "kernels/cpu/rows/row_operators.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/latent_attention.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kAlignment = 64;
// Below this many tiles per thread, rows over long contexts are split into partitions.
constexpr int64_t kTilesPerThread = 4;

// The work of one request, and where it starts in the call's numbering of tiles.
struct RequestPlan {
  int32_t tile_begin;
  int32_t num_tiles;
  int32_t merge_begin;
  int32_t row_blocks;
  int32_t partition_begin;  // the first with a key that any row sees
  int32_t num_partitions;
  int64_t partials;  // offset in floats, -1: not split
};

// `rope_dim`: 0 for usual attention.
int64_t scratch_bytes(int64_t head_dim, int64_t value_dim, int64_t rope_dim) {
  const int64_t floats = rope_dim > 0 ? cpu::latent_scratch_floats(head_dim)
                                      : cpu::attention_scratch_floats(cached_head_dim(head_dim),
                                                                      cached_head_dim(value_dim));
  return align_up(floats * 4, kAlignment);
}

int64_t plan_bytes(int64_t num_reqs) {
  return align_up(num_reqs * static_cast<int64_t>(sizeof(RequestPlan)), kAlignment);
}

// For each token, the number of blocks that have yet to write a part of it.
using PartsLeft = std::atomic<int32_t>;

int64_t parts_bytes(int64_t num_tokens) {
  return align_up(num_tokens * static_cast<int64_t>(sizeof(PartsLeft)), kAlignment);
}

}  // namespace

namespace cpu {

int64_t latent_workspace_bytes(const AttentionLimits& limits, int32_t rope_dim) {
  int64_t bytes = limits.num_threads * scratch_bytes(limits.head_dim, limits.head_dim, rope_dim) +
                  plan_bytes(limits.num_reqs) + parts_bytes(limits.num_tokens);
  if (limits.num_threads == 1) return bytes;
  const int64_t group = limits.num_heads / limits.num_kv_heads;
  const int64_t rows = kTilesPerThread * limits.num_threads * group;
  const int64_t partitions = ceil_div(limits.seq_len, kAttentionPartition);
  return bytes + rows * partitions * (cached_head_dim(limits.head_dim) + 2) * 4;
}

int64_t attention_workspace_bytes(const AttentionLimits& limits) {
  return cpu::latent_workspace_bytes(limits, 0);
}

namespace {

// How latent attention differs: rows of heads lie apart, and a query goes on after the latent.
struct LatentShape {
  int64_t q_head_stride = 0;
  int64_t out_head_stride = 0;
  int32_t rope_dim = 0;  // 0: usual attention
  ChosenKeys chosen = {};
  int32_t most_keys = std::numeric_limits<int32_t>::max();  // of a token
};

// One call: the plans of its requests and the blocks made from them.
class AttentionCall {
 public:
  AttentionCall(const ExecContext& ctx, const AttentionArgs& args, const LatentShape& latent = {})
      : args_(args),
        latent_(latent),
        num_reqs_(static_cast<int32_t>(args.seq_lens.size())),
        group_(args.num_heads / args.kv.num_kv_heads),
        value_dim_(cached_head_dim(args.kv.value_width())),
        scratch_bytes_(scratch_bytes(args.kv.head_dim, args.kv.value_width(), latent.rope_dim)),
        plans_(reinterpret_cast<RequestPlan*>(args.workspace.data())) {
    const int64_t threads = ctx.pool->num_threads();
    const int64_t plans = plan_bytes(num_reqs_);
    const int64_t parts = parts_bytes(args.query_start_loc[num_reqs_]);
    const int64_t fixed = plans + parts + threads * scratch_bytes_;
    CHECK_LE(fixed, static_cast<int64_t>(args.workspace.size()));
    parts_left_ = reinterpret_cast<PartsLeft*>(args.workspace.data() + plans);
    scratch_ = args.workspace.data() + plans + parts;
    partials_ = reinterpret_cast<float*>(args.workspace.data() + fixed);
    plan(threads, (static_cast<int64_t>(args.workspace.size()) - fixed) / 4);
    if (args.then != nullptr) count_parts();
  }

  [[nodiscard]] int64_t num_tiles() const { return num_tiles_; }

  [[nodiscard]] int64_t num_merges() const { return num_merges_; }

  // Returns tile `tile` as a block for worker `worker`. Row blocks that see most keys come first;
  // the heads of a KV block lie in a row, and are read one after the other.
  [[nodiscard]] QueryBlock tile(int64_t tile, int32_t worker) const {
    const RequestPlan& plan = plan_of(tile, &RequestPlan::tile_begin);
    const int64_t in_request = tile - plan.tile_begin;
    const auto kv_head = static_cast<int32_t>(in_request % args_.kv.num_kv_heads);
    const int64_t rest = in_request / args_.kv.num_kv_heads;
    const bool split = plan.partials >= 0;
    const int64_t row_blocks_before = split ? rest / plan.num_partitions : rest;
    const int64_t row_block = plan.row_blocks - 1 - row_blocks_before;
    QueryBlock block = block_of(plan, kv_head, row_block, worker);
    if (split) {
      const int64_t partition = rest % plan.num_partitions;
      block.partition_begin = plan.partition_begin + static_cast<int32_t>(partition);
      block.partition_end = block.partition_begin + 1;
    }
    return block;
  }

  [[nodiscard]] QueryBlock merge(int64_t merge, int32_t worker) const {
    const RequestPlan& plan = plan_of(merge, &RequestPlan::merge_begin);
    const int64_t rest = merge - plan.merge_begin;
    const auto kv_head = static_cast<int32_t>(rest % args_.kv.num_kv_heads);
    return block_of(plan, kv_head, rest / args_.kv.num_kv_heads, worker);
  }

  // Called when `block`, an unsplit tile or a merge, is written. The worker that wrote the last
  // part of a token runs the steps that follow, on its row.
  void finish(const SimdTable& simd, const QueryBlock& block) const {
    if (args_.then == nullptr) return;
    const int32_t first = block.first_token + block.row_begin / group_;
    const int32_t last = block.first_token + (block.row_begin + block.num_rows - 1) / group_;
    for (int32_t token = first; token <= last; ++token) {
      if (parts_left_[token].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        run_rows(simd, *args_.then, token, token + 1);
      }
    }
  }

 private:
  void count_parts() {
    for (int32_t req = 0; req < num_reqs_; ++req) {
      for (int32_t i = 0; i < num_tokens(req); ++i) {
        const int32_t blocks =
            ((i + 1) * group_ - 1) / kAttentionMaxRows - i * group_ / kAttentionMaxRows + 1;
        new (&parts_left_[args_.query_start_loc[req] + i])
            PartsLeft(blocks * args_.kv.num_kv_heads);
      }
    }
  }

  // Whether each token has keys of its own; then no block has rows of two.
  [[nodiscard]] bool chooses() const { return latent_.chosen.words != nullptr; }

  static int64_t blocks_of(int64_t rows) { return ceil_div(rows, kAttentionMaxRows); }

  [[nodiscard]] int32_t num_tokens(int64_t req) const {
    return args_.query_start_loc[req + 1] - args_.query_start_loc[req];
  }

  // Keys of the cache that a request's tokens see at most.
  [[nodiscard]] int32_t num_keys(int64_t req) const {
    const int32_t keys = args_.num_seen.empty() ? args_.seq_lens[req] : args_.num_seen[req];
    return std::min(keys, latent_.most_keys);
  }

  // Returns the last request whose numbers start at or before `index`; empty ones share the next's.
  [[nodiscard]] const RequestPlan& plan_of(int64_t index, int32_t RequestPlan::*begin) const {
    RequestPlan* const end = plans_ + num_reqs_;
    return *(
        std::upper_bound(plans_,
                         end,
                         index,
                         [begin](int64_t i, const RequestPlan& plan) { return i < plan.*begin; }) -
        1);
  }

  void plan(int64_t threads, int64_t free_floats) {
    int64_t unsplit_tiles = 0;
    for (int32_t req = 0; req < num_reqs_; ++req) {
      RequestPlan& plan = plans_[req];
      plan.row_blocks = static_cast<int32_t>(chooses() ? num_tokens(req) * blocks_of(group_)
                                                       : blocks_of(num_tokens(req) * group_));
      unsplit_tiles += int64_t{plan.row_blocks} * args_.kv.num_kv_heads;
    }
    const bool want_split = threads > 1 && unsplit_tiles < kTilesPerThread * threads;
    int64_t used_floats = 0;
    for (int32_t req = 0; req < num_reqs_; ++req) {
      RequestPlan& plan = plans_[req];
      const int32_t seq_len = args_.seq_lens[req];
      const int64_t rows = int64_t{num_tokens(req)} * group_;
      DCHECK(num_tokens(req) <= seq_len);
      plan.partition_begin =
          first_visible_key(seq_len - num_tokens(req), args_.window, args_.is_chunked) /
          kAttentionPartition;
      plan.num_partitions =
          static_cast<int32_t>(ceil_div(num_keys(req), kAttentionPartition)) - plan.partition_begin;
      plan.num_tiles = plan.row_blocks * args_.kv.num_kv_heads;
      plan.partials = -1;
      plan.tile_begin = static_cast<int32_t>(num_tiles_);
      plan.merge_begin = static_cast<int32_t>(num_merges_);
      const int64_t floats = rows * args_.kv.num_kv_heads * plan.num_partitions * (value_dim_ + 2);
      if (want_split && plan.num_partitions > 1 && used_floats + floats <= free_floats) {
        plan.partials = used_floats;
        used_floats += floats;
        num_merges_ += plan.num_tiles;
        plan.num_tiles *= plan.num_partitions;
      }
      num_tiles_ += plan.num_tiles;
    }
  }

  [[nodiscard]] QueryBlock block_of(const RequestPlan& plan,
                                    int32_t kv_head,
                                    int64_t row_block,
                                    int32_t worker) const {
    const KvLayerView& kv = args_.kv;
    const int64_t req = &plan - plans_;
    const int64_t rows = int64_t{num_tokens(req)} * group_;
    const int64_t first_head = int64_t{kv_head} * group_;
    const int64_t k_bytes = kv_head_bytes(kv.dtype, kv.head_dim, kv.block_size);
    const bool is_latent = latent_.rope_dim > 0;
    const int64_t v_bytes =
        kv_head_bytes(kv.dtype, is_latent ? latent_.rope_dim : kv.value_width(), kv.block_size);
    float* partials = nullptr;
    if (plan.partials >= 0) {
      partials =
          partials_ + plan.partials + kv_head * rows * plan.num_partitions * (value_dim_ + 2);
    }
    int64_t row_begin = row_block * kAttentionMaxRows;
    int64_t row_end = std::min(row_begin + kAttentionMaxRows, rows);
    if (chooses()) {
      const int64_t token = row_block / blocks_of(group_);
      row_begin = token * group_ + row_block % blocks_of(group_) * kAttentionMaxRows;
      row_end = std::min(row_begin + kAttentionMaxRows, (token + 1) * group_);
    }
    return {
        .q = args_.q + args_.query_start_loc[req] * args_.q_stride + first_head * kv.head_dim,
        .q_stride = args_.q_stride,
        .q_head_stride = is_latent ? latent_.q_head_stride : kv.head_dim,
        .out = args_.out + args_.query_start_loc[req] * args_.out_stride +
               first_head * kv.value_width(),
        .out_stride = args_.out_stride,
        .out_head_stride = is_latent ? latent_.out_head_stride : kv.value_width(),
        .k = kv.k + kv_head * k_bytes,
        .v = kv.v + kv_head * v_bytes,
        .block_bytes = kv.num_kv_heads * k_bytes,
        .v_block_bytes = kv.num_kv_heads * v_bytes,
        .block_table = args_.block_table + req * args_.block_table_stride,
        .sinks = args_.sinks != nullptr ? args_.sinks + int64_t{kv_head} * group_ : nullptr,
        .slopes = args_.slopes != nullptr ? args_.slopes + int64_t{kv_head} * group_ : nullptr,
        .place_bias = args_.place_bias != nullptr
                          ? args_.place_bias + first_head * args_.place_bias_stride
                          : nullptr,
        .place_bias_stride = args_.place_bias_stride,
        .chosen = chooses()
                      ? latent_.chosen.words + args_.query_start_loc[req] * latent_.chosen.stride
                      : nullptr,
        .chosen_stride = latent_.chosen.stride,
        .scratch = reinterpret_cast<float*>(scratch_ + worker * scratch_bytes_),
        .partials = partials,
        .dtype = kv.dtype,
        .block_size = kv.block_size,
        .width = kv.head_dim,
        .value_width = kv.value_width(),
        .rope_dim = latent_.rope_dim,
        .rope_width = static_cast<int32_t>(cached_head_dim(latent_.rope_dim)),
        .head_dim = static_cast<int32_t>(cached_head_dim(kv.head_dim)),
        .value_dim = static_cast<int32_t>(value_dim_),
        .first_token = args_.query_start_loc[req],
        .group = group_,
        .row_begin = static_cast<int32_t>(row_begin),
        .num_rows = static_cast<int32_t>(row_end - row_begin),
        .first_position = args_.seq_lens[req] - num_tokens(req),
        .partition_base = plan.partition_begin,
        .partition_begin = plan.partition_begin,
        .partition_end = plan.partition_begin + plan.num_partitions,
        .rows_per_request = static_cast<int32_t>(rows),
        .scale = args_.scale,
        .window = args_.window,
        .is_chunked = args_.is_chunked,
        .soft_cap = args_.soft_cap,
        .keys_behind = args_.sees_behind ? num_keys(req) : 0,
    };
  }

  const AttentionArgs& args_;
  const LatentShape latent_;
  const int32_t num_reqs_;
  const int32_t group_;
  const int64_t value_dim_;  // cached_head_dim() of V's width
  const int64_t scratch_bytes_;
  RequestPlan* const plans_;
  PartsLeft* parts_left_ = nullptr;
  std::byte* scratch_ = nullptr;
  float* partials_ = nullptr;
  int64_t num_tiles_ = 0;
  int64_t num_merges_ = 0;
};

void run(const ExecContext& ctx, const AttentionCall& call) {
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(call.num_tiles(), [&](int64_t tile, int32_t worker) {
    const QueryBlock block = call.tile(tile, worker);
    simd.attention_block(block);
    if (block.partials == nullptr) call.finish(simd, block);
  });
  if (call.num_merges() == 0) return;
  ctx.pool->parallel_for(call.num_merges(), [&](int64_t merge, int32_t worker) {
    const QueryBlock block = call.merge(merge, worker);
    simd.attention_merge(block);
    call.finish(simd, block);
  });
}

}  // namespace

void attention(const ExecContext& ctx, const AttentionArgs& args) {
  DCHECK(args.query_start_loc.size() == args.seq_lens.size() + 1);
  DCHECK(args.num_heads % args.kv.num_kv_heads == 0);
  DCHECK(kAttentionTile % args.kv.block_size == 0);
  if (ctx.read_ahead != nullptr) ctx.read_ahead->end();
  run(ctx, AttentionCall(ctx, args));
}

void latent_attention(const ExecContext& ctx, const LatentAttentionArgs& args) {
  const LatentKvView& cache = args.cache;
  DCHECK(args.query_start_loc.size() == args.seq_lens.size() + 1);
  DCHECK(kAttentionTile % cache.block_size == 0 && cache.latent_dim % 32 == 0);
  DCHECK(!has_kv_scales(cache.dtype) && cache.rope_dim > 0);
  if (ctx.read_ahead != nullptr) ctx.read_ahead->end();
  run(ctx,
      AttentionCall(ctx,
                    as_one_head(args),
                    {.q_head_stride = args.query.head_stride,
                     .out_head_stride = args.out.head_stride,
                     .rope_dim = cache.rope_dim,
                     .chosen = args.chosen,
                     .most_keys = most_keys(args, std::numeric_limits<int32_t>::max())}));
}

void attention_ahead(const ExecContext& ctx, const AttentionAheadArgs& args) {
  if (ctx.read_ahead != nullptr) ctx.read_ahead->begin(args);
}

}  // namespace cpu
}  // namespace sluice::kernels
