// SPDX-License-Identifier: Apache-2.0
// Cuts a linear layer into tiles for the pool. How it is cut never shows in the results.
#include "kernels/gemm.h"

#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/runtime.h"
#include "kernels/cpu/simd.h"

namespace sluice::kernels::cpu {
namespace {

// Rows of activations per tile of work: their codes and scales fit L2 beside a weight tile.
constexpr int32_t kRowBlock = 64;
static_assert(kRowBlock % kActivationRows == 0);
// Pieces per thread and weight that the work is cut into, so that a worker which loses its core
// for a while holds back little.
constexpr int64_t kPiecesPerThread = 4;

struct Cut {
  int64_t row_blocks;
  int64_t tiles_per_piece;
};

int64_t num_tiles(const RowGroup& group) { return ceil_div(group.weight->n, kRowTile); }

Cut cut_work(const LinearArgs& args, int32_t num_threads) {
  int64_t tiles = 0;
  for (const RowGroup& group : args.groups) tiles += num_tiles(group);
  const int64_t row_blocks = ceil_div(args.x.num_rows, kRowBlock);
  const int64_t pieces = std::max<int64_t>(1, kPiecesPerThread * num_threads / row_blocks);
  return {.row_blocks = row_blocks, .tiles_per_piece = std::max<int64_t>(1, tiles / pieces)};
}

LinearBlock make_block(const LinearArgs& args,
                       const RowGroup& group,
                       int64_t piece,
                       int64_t row_block,
                       const Cut& cut) {
  const PackedWeight& weight = *group.weight;
  const int64_t groups = ceil_div(weight.k, kQuantGroup);
  const int64_t tile_bytes = packed_tile_bytes(weight.format, weight.k);
  const int64_t tile = piece * cut.tiles_per_piece;
  const int64_t tiles = std::min(cut.tiles_per_piece, num_tiles(group) - tile);
  const int64_t column = tile * kRowTile;
  const int64_t row = row_block * kRowBlock;
  return {
      .format = weight.format,
      .activation = args.x.format,
      .add = args.epilogue == Epilogue::kAdd,
      .num_tiles = static_cast<int32_t>(tiles),
      .num_columns = static_cast<int32_t>(std::min<int64_t>(tiles * kRowTile, weight.n - column)),
      .num_rows = static_cast<int32_t>(std::min<int64_t>(kRowBlock, args.x.num_rows - row)),
      .num_groups = static_cast<int32_t>(groups),
      .weight = weight.data + tile * tile_bytes,
      .tile_bytes = tile_bytes,
      .x = quantized_row(args.x, row).codes,
      .bias = group.bias == nullptr ? nullptr : group.bias + column,
      .out = group.out + row * group.out_stride + column,
      .out_stride = group.out_stride};
}

}  // namespace

void linear(const ExecContext& ctx, const LinearArgs& args) {
  if (args.x.num_rows == 0) return;
  const Cut cut = cut_work(args, ctx.pool->num_threads());
  int64_t pieces = 0;
  for (const RowGroup& group : args.groups) {
    CHECK_EQ(group.weight->k, args.x.k);
    CHECK(args.x.format == ActivationFormat::kFloat ||
          format_info(group.weight->format).is_integer);
    CHECK_EQ(group.weight->format == WeightFormat::kInt8Channel,
             args.x.format == ActivationFormat::kInt8Token);
    pieces += ceil_div(num_tiles(group), cut.tiles_per_piece);
  }
  const SimdTable& simd = simd_table(ctx.isa);
  // Row blocks vary fastest: a weight piece is read from memory once.
  ctx.pool->parallel_for(pieces * cut.row_blocks, [&](int64_t index, int32_t) {
    int64_t piece = index / cut.row_blocks;
    for (const RowGroup& group : args.groups) {
      const int64_t here = ceil_div(num_tiles(group), cut.tiles_per_piece);
      if (piece < here) {
        simd.linear(make_block(args, group, piece, index % cut.row_blocks, cut));
        return;
      }
      piece -= here;
    }
  });
}

}  // namespace sluice::kernels::cpu
