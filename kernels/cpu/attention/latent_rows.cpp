// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cpu/attention/cache_row.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/latent_attention.h"

namespace sluice::kernels::cpu {
namespace {

constexpr int64_t kTokensPerClaim = 4;

void latent_row(const SimdTable& simd, const LatentRowsArgs& args, int64_t token) {
  const int32_t latent = args.cache.latent_dim;
  const int32_t rope = args.cache.rope_dim;
  const int32_t position = args.positions[static_cast<size_t>(token)];
  float* const kv = args.kv + token * args.kv_stride;
  simd.norm_in_place(
      kv,
      {.weight = args.norm, .bias = nullptr, .eps = args.norm_eps, .subtracts_mean = false},
      latent);
  const auto rotate = [&](float* x) {
    if (args.table == nullptr) return;
    simd.rope_row({.x = x,
                   .cos = args.table->cos_row(position),
                   .sin = args.table->sin_row(position),
                   .num_heads = 1,
                   .head_dim = rope,
                   .num_pairs = args.table->num_pairs(),
                   .halves = args.table->style() == RopeStyle::kHalves});
  };
  rotate(kv + latent);
  const int64_t slot = args.slot_mapping[static_cast<size_t>(token)];
  const LatentKvView& cache = args.cache;
  if (slot >= 0) {
    cache_row({cache.latent, cache.dtype, cache.block_size, latent}, slot, kv);
    cache_row({cache.rope, cache.dtype, cache.block_size, rope}, slot, kv + latent);
  }
  const float* const scales = args.table == nullptr ? nullptr : args.table->query_scales();
  const float* q = args.q + token * args.q_stride;
  const int64_t padded = align_up(args.nope_dim, 32);
  for (int32_t head = 0; head < args.num_heads; ++head, q += args.nope_dim + rope) {
    float* const nope = args.nope.data + head * args.nope.head_stride + token * args.nope.stride;
    std::copy_n(q, args.nope_dim, nope);
    std::fill(nope + args.nope_dim, nope + padded, 0.0F);
    float* const turned =
        args.query.data + head * args.query.head_stride + token * args.query.stride + latent;
    std::copy_n(q + args.nope_dim, rope, turned);
    rotate(turned);
    if (scales == nullptr) continue;
    for (int32_t i = 0; i < args.nope_dim; ++i) nope[i] *= scales[position];
    for (int32_t i = 0; i < rope; ++i) turned[i] *= scales[position];
  }
}

void list_heads(const LatentRowsArgs& args) {
  const ExpertRows& heads = args.heads;
  for (int32_t head = 0; head < args.num_heads; ++head) {
    heads.first[head] = static_cast<int32_t>(head * (args.nope.head_stride / args.nope.stride));
    heads.count[head] = static_cast<int32_t>(args.positions.size());
    heads.chosen[head] = head;
  }
  *heads.num_chosen = args.num_heads;
}

}  // namespace

void latent_rows(const ExecContext& ctx, const LatentRowsArgs& args) {
  DCHECK(args.positions.size() == args.slot_mapping.size());
  DCHECK(args.table == nullptr || 2 * args.table->num_pairs() == args.cache.rope_dim);
  const SimdTable& simd = simd_table(ctx.isa);
  if (args.heads.first != nullptr) list_heads(args);
  ctx.pool->parallel_for_chunked(static_cast<int64_t>(args.positions.size()),
                                 {.chunk = kTokensPerClaim},
                                 [&](int64_t begin, int64_t end, int32_t) {
                                   for (int64_t token = begin; token < end; ++token) {
                                     latent_row(simd, args, token);
                                   }
                                 });
}

void join_heads(const ExecContext& ctx, const JoinHeadsArgs& args) {
  ctx.pool->parallel_for_chunked(
      args.num_tokens, {.chunk = kTokensPerClaim}, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t token = begin; token < end; ++token) {
          for (int32_t head = 0; head < args.num_heads; ++head) {
            std::copy_n(
                args.rows.data + head * args.rows.head_stride + token * args.rows.stride,
                args.width,
                args.out + token * args.out_stride + int64_t{head} * args.width);
          }
        }
      });
}

}  // namespace sluice::kernels::cpu
