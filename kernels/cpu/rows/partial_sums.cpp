// SPDX-License-Identifier: Apache-2.0
#include "kernels/partial_sums.h"

#include <algorithm>
#include <array>
#include <bit>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/rows/row_operators.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice::kernels::cpu {

void join_parts(const ExecContext& ctx, const JoinPartsArgs& args) {
  DCHECK(args.parts.size() <= kSegments && std::has_single_bit(args.parts.size()));
  const SimdTable& simd = simd_table(ctx.isa);
  const PackedWeight& weight = *args.weight;
  const bool integers = layout_of(weight.format).has_int32_sums();
  const bool scaled = integers || layout_of(weight.format).scales_folded_sums();
  const bool has_row_scale = args.x.format == ActivationFormat::kInt8Token ||
                             args.x.format == ActivationFormat::kE4M3Token;
  const int64_t tile_bytes = packed_tile_bytes(weight.format, weight.stored_columns());
  const auto rows = [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t row = begin; row < end; ++row) {
      std::array<const float*, kSegments> parts{};
      for (size_t i = 0; i < args.parts.size(); ++i) parts[i] = args.parts[i] + row * weight.n;
      simd.join_row({.parts = parts.data(),
                     .num_parts = static_cast<int32_t>(args.parts.size()),
                     .n = weight.n,
                     .integers = integers,
                     .scales = scaled ? weight.data : nullptr,
                     .tile_bytes = tile_bytes,
                     .row_scale = has_row_scale ? quantized_row(args.x, row).scale : nullptr,
                     .bias = args.bias,
                     .add = args.epilogue == Epilogue::kAdd,
                     .out = args.out + row * args.out_stride});
    }
    if (args.then != nullptr) run_rows(simd, *args.then, begin, end);
  };
  const int64_t count = args.x.num_rows;
  ctx.pool->parallel_for_chunked(count, {.chunk = rows_per_claim(count)}, rows);
}

void join_expert_parts(const ExecContext& ctx, const JoinExpertPartsArgs& args) {
  const std::span<const int32_t> chosen(args.rows.chosen,
                                        static_cast<size_t>(*args.rows.num_chosen));
  for (const int32_t expert : chosen) {
    const ExpertMatrix& matrix = args.matrices[static_cast<size_t>(expert)];
    const int64_t first = args.rows.first[expert];
    std::array<const float*, kSegments> parts{};
    std::ranges::transform(args.parts, parts.begin(), [&](const float* part) {
      return part + first * matrix.weight->n;
    });
    const JoinPartsArgs own = {.parts = std::span(parts).first(args.parts.size()),
                               .weight = matrix.weight,
                               .x = activation_rows(args.x, first, args.rows.count[expert]),
                               .bias = matrix.bias,
                               .out = args.out + first * args.out_stride,
                               .out_stride = args.out_stride};
    cpu::join_parts(ctx, own);
  }
}

void row_magnitudes(const ExecContext& ctx, const RowMagnitudesArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  const auto rows = [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t row = begin; row < end; ++row) {
      args.out[row] = simd.row_magnitude(args.x + row * args.x_stride, args.n);
    }
  };
  ctx.pool->parallel_for_chunked(args.num_rows, {.chunk = rows_per_claim(args.num_rows)}, rows);
}

}  // namespace sluice::kernels::cpu
