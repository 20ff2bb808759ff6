// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/rows/row_operators.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice::kernels::cpu {
namespace {

template <typename Args>
RowNorm norm_of(const Args& args) {
  return {.weight = args.weight,
          .bias = args.bias,
          .eps = args.eps,
          .subtracts_mean = args.subtracts_mean};
}

}  // namespace

void run_rows(const SimdTable& simd, const RmsNormArgs& args, int64_t begin, int64_t end) {
  DCHECK(args.out.k >= 1 && args.x_stride >= args.out.k);
  for (int64_t row = begin; row < end; ++row) {
    simd.norm_row(args.x + row * args.x_stride, norm_of(args), quantized_row(args.out, row));
  }
}

void run_rows(const SimdTable& simd, const HeadNormArgs& args, int64_t begin, int64_t end) {
  DCHECK(args.x_stride >= int64_t{args.num_heads} * args.n);
  for (int64_t row = begin; row < end; ++row) {
    const float* const x = args.x + row * args.x_stride;
    float* const out = (args.out == nullptr ? args.x : args.out) + row * args.x_stride;
    if (out != x) std::copy_n(x, args.num_heads * args.n, out);
    for (int32_t head = 0; head < args.num_heads; ++head) {
      RowNorm norm = norm_of(args);
      norm.weight += head * args.weight_step;
      simd.norm_in_place(out + int64_t{head} * args.n, norm, args.n);
    }
  }
}

void run_rows(const SimdTable& simd, const HeadSquaresArgs& args, int64_t begin, int64_t end) {
  DCHECK(args.first + args.num_heads <= args.whole && args.whole <= args.out_stride);
  for (int64_t row = begin; row < end; ++row) {
    const float* const x = args.x + row * args.x_stride;
    float* const out = args.out + row * args.out_stride;
    std::fill_n(out, args.whole, 0.0F);
    for (int32_t head = 0; head < args.num_heads; ++head) {
      out[args.first + head] = simd.sum_of_squares(x + int64_t{head} * args.n, args.n);
    }
  }
}

void run_rows(const SimdTable& simd, const JoinedNormArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float sum = 0;
    for (int32_t head = 0; head < args.whole; ++head) {
      uint32_t largest = 0;
      for (int32_t part = 0; part < args.num_parts; ++part) {
        const float* const sums = args.parts[part] + row * args.parts_stride;
        largest = std::max(largest, std::bit_cast<uint32_t>(sums[head]));
      }
      sum += std::bit_cast<float>(largest);
    }
    const float mean = sum / static_cast<float>(args.whole * args.n);
    simd.scale_by_weights(args.x + row * args.x_stride,
                          args.weight,
                          1.0F / std::sqrt(mean + args.eps),
                          args.num_heads * args.n);
  }
}

void rms_norm(const ExecContext& ctx, const RmsNormArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  const auto rows = [&](int64_t begin, int64_t end, int32_t) { run_rows(simd, args, begin, end); };
  ctx.pool->parallel_for_chunked(
      args.out.num_rows, {.chunk = rows_per_claim(args.out.num_rows)}, rows);
}

void head_norm(const ExecContext& ctx, const HeadNormArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.num_rows,
                         [&](int64_t row, int32_t) { run_rows(simd, args, row, row + 1); });
}

void head_squares(const ExecContext& ctx, const HeadSquaresArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.num_rows,
                         [&](int64_t row, int32_t) { run_rows(simd, args, row, row + 1); });
}

void joined_norm(const ExecContext& ctx, const JoinedNormArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.num_rows,
                         [&](int64_t row, int32_t) { run_rows(simd, args, row, row + 1); });
}

}  // namespace sluice::kernels::cpu
