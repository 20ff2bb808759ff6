// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/latent_attention.h"
#include "quant/format.h"

namespace sluice::kernels::cpu {
namespace {

constexpr int64_t kTokensPerClaim = 4;

// Writes n elements of a cache's type, and zeros up to `width`.
void write_elements(const float* x, int32_t n, int64_t width, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    auto* const out = reinterpret_cast<float*>(to);
    std::copy_n(x, n, out);
    std::fill(out + n, out + width, 0.0F);
    return;
  }
  auto* const out = reinterpret_cast<uint16_t*>(to);
  const bool is_half = dtype == DType::kF16;
  for (int32_t i = 0; i < n; ++i) out[i] = is_half ? float_to_half(x[i]) : float_to_bf16(x[i]);
  std::fill(out + n, out + width, uint16_t{0});
}

void cache_row(const LatentKvView& cache, int64_t slot, const float* kv) {
  const auto write = [&](std::byte* plane, const float* x, int32_t n) {
    const int64_t width = cached_head_dim(n);
    const int64_t block = slot / cache.block_size * kv_head_bytes(cache.dtype, n, cache.block_size);
    const int64_t row = slot % cache.block_size * width;
    write_elements(x,
                   n,
                   width,
                   cache.dtype,
                   plane + block + row * static_cast<int64_t>(dtype_bytes(cache.dtype)));
  };
  write(cache.latent, kv, cache.latent_dim);
  write(cache.rope, kv + cache.latent_dim, cache.rope_dim);
}

void latent_row(const SimdTable& simd, const LatentRowsArgs& args, int64_t token) {
  const int32_t latent = args.cache.latent_dim;
  const int32_t rope = args.cache.rope_dim;
  const int32_t position = args.positions[static_cast<size_t>(token)];
  float* const kv = args.kv + token * args.kv_stride;
  simd.norm_in_place(
      kv,
      {.weight = args.norm, .bias = nullptr, .eps = args.norm_eps, .subtracts_mean = false},
      latent);
  RopeRow row{.x = kv + latent,
              .cos = args.table->cos_row(position),
              .sin = args.table->sin_row(position),
              .num_heads = 1,
              .head_dim = rope,
              .num_pairs = args.table->num_pairs(),
              .halves = args.table->style() == RopeStyle::kHalves};
  simd.rope_row(row);
  const int64_t slot = args.slot_mapping[static_cast<size_t>(token)];
  if (slot >= 0) cache_row(args.cache, slot, kv);
  const float* q = args.q + token * args.q_stride;
  const int64_t padded = align_up(args.nope_dim, 32);
  for (int32_t head = 0; head < args.num_heads; ++head, q += args.nope_dim + rope) {
    float* const nope = args.nope.data + head * args.nope.head_stride + token * args.nope.stride;
    std::copy_n(q, args.nope_dim, nope);
    std::fill(nope + args.nope_dim, nope + padded, 0.0F);
    float* const turned =
        args.query.data + head * args.query.head_stride + token * args.query.stride + latent;
    std::copy_n(q + args.nope_dim, rope, turned);
    row.x = turned;
    simd.rope_row(row);
  }
}

}  // namespace

void latent_rows(const ExecContext& ctx, const LatentRowsArgs& args) {
  DCHECK(args.positions.size() == args.slot_mapping.size());
  DCHECK(2 * args.table->num_pairs() == args.cache.rope_dim);
  const SimdTable& simd = simd_table(ctx.isa);
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
