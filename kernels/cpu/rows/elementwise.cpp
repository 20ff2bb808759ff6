// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include <cstring>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/rows/row_operators.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice::kernels::cpu {

void embedding(const ExecContext& ctx, const EmbeddingArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  const PackedWeight& table = *args.table;
  const int64_t tile_bytes = packed_tile_bytes(table.format, table.k);
  ctx.pool->parallel_for(static_cast<int64_t>(args.token_ids.size()), [&](int64_t i, int32_t) {
    const TokenId token = args.token_ids[static_cast<size_t>(i)];
    DCHECK(token >= 0 && token < table.n);
    simd.embedding_row({.format = table.format,
                        .tile = table.data + token / kRowTile * tile_bytes,
                        .row_in_tile = token % kRowTile,
                        .k = table.k,
                        .scaled = layout_of(table.format).scales_folded_sums(),
                        .out = args.out + i * args.out_stride});
  });
}

void run_rows(const SimdTable& simd, const GateMulArgs& args, int64_t begin, int64_t end) {
  DCHECK(args.out.k >= 1 && args.stride >= args.out.k);
  const bool all = args.rows.data() == nullptr;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = all ? i : args.rows[static_cast<size_t>(i)];
    simd.gate_mul_row(args,
                      args.gate + row * args.stride,
                      args.up == nullptr ? nullptr : args.up + row * args.stride,
                      quantized_row(args.out, row));
  }
}

void run_rows(const SimdTable& simd, const AddRowsArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    simd.add_row(args.x + row * args.x_stride, args.y + row * args.y_stride, args.scale, args.n);
  }
}

void run_rows(const SimdTable& simd, const ScaleRowsArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    simd.scale_row(args, args.x + row * args.x_stride);
  }
}

void gate_mul(const ExecContext& ctx, const GateMulArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  const bool all = args.rows.data() == nullptr;
  const int64_t count = all ? args.out.num_rows : static_cast<int64_t>(args.rows.size());
  ctx.pool->parallel_for(count, [&](int64_t i, int32_t) { run_rows(simd, args, i, i + 1); });
}

void add_rows(const ExecContext& ctx, const AddRowsArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.num_rows,
                         [&](int64_t row, int32_t) { run_rows(simd, args, row, row + 1); });
}

void scale_rows(const ExecContext& ctx, const ScaleRowsArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.num_rows,
                         [&](int64_t row, int32_t) { run_rows(simd, args, row, row + 1); });
}

void gather_rows(const ExecContext& ctx, const GatherRowsArgs& args) {
  ctx.pool->parallel_for(static_cast<int64_t>(args.indices.size()), [&](int64_t i, int32_t) {
    std::memcpy(args.out + i * args.out_stride,
                args.row(args.indices[static_cast<size_t>(i)]),
                static_cast<size_t>(args.n) * sizeof(float));
  });
}

void select_columns(const ExecContext& ctx, const SelectColumnsArgs& args) {
  ctx.pool->parallel_for(args.num_rows, [&](int64_t i, int32_t) {
    const float* const x = args.x + i * args.x_stride;
    float* const out = args.out + i * args.out_stride;
    for (size_t c = 0; c < args.columns.size(); ++c) {
      const int32_t column = args.columns[c];
      out[c] = column < 0 ? args.absent : x[column];
    }
  });
}

}  // namespace sluice::kernels::cpu
