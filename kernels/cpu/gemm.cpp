// SPDX-License-Identifier: Apache-2.0
// Cuts linear layers into tiles for the pool. How they are cut never shows in the results.
#include "kernels/gemm.h"

#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/runtime.h"
#include "kernels/cpu/simd.h"
#include "kernels/moe.h"

namespace sluice::kernels::cpu {
namespace {

// Rows of activations per tile of work: their codes and scales fit L2 beside a weight tile.
constexpr int32_t kRowBlock = 64;
static_assert(kRowBlock % kActivationRows == 0);
// Pieces per thread that the work is cut into, so that a worker which loses its core for a while
// holds back little. Matrices that are many pieces by themselves are claimed several at a time.
constexpr int64_t kPiecesPerThread = 4;
constexpr int64_t kClaimsPerThread = 16;

// One matrix over its rows.
struct Job {
  Activations x;
  RowGroup group;
  Epilogue epilogue;

  [[nodiscard]] int64_t num_tiles() const { return ceil_div(group.weight->n, kRowTile); }

  [[nodiscard]] int64_t row_blocks() const { return ceil_div(x.num_rows, kRowBlock); }

  // Pieces of so many tiles, each for every row block.
  [[nodiscard]] int64_t num_items(int64_t tiles_per_piece) const {
    return ceil_div(num_tiles(), tiles_per_piece) * row_blocks();
  }
};

// Row blocks vary fastest: a weight piece is read from memory once.
LinearBlock make_block(const Job& job, int64_t item, int64_t tiles_per_piece) {
  const RowGroup& group = job.group;
  const PackedWeight& weight = *group.weight;
  const int64_t groups = ceil_div(weight.k, kQuantGroup);
  const int64_t tile_bytes = packed_tile_bytes(weight.format, weight.k);
  const int64_t tile = item / job.row_blocks() * tiles_per_piece;
  const int64_t tiles = std::min(tiles_per_piece, job.num_tiles() - tile);
  const int64_t column = tile * kRowTile;
  const int64_t row = item % job.row_blocks() * kRowBlock;
  return {
      .format = weight.format,
      .activation = job.x.format,
      .add = job.epilogue == Epilogue::kAdd,
      .num_tiles = static_cast<int32_t>(tiles),
      .num_columns = static_cast<int32_t>(std::min<int64_t>(tiles * kRowTile, weight.n - column)),
      .num_rows = static_cast<int32_t>(std::min<int64_t>(kRowBlock, job.x.num_rows - row)),
      .num_groups = static_cast<int32_t>(groups),
      .weight = weight.data + tile * tile_bytes,
      .tile_bytes = tile_bytes,
      .x = quantized_row(job.x, row).codes,
      .bias = group.bias == nullptr ? nullptr : group.bias + column,
      .out = group.out + row * group.out_stride + column,
      .out_stride = group.out_stride};
}

// Runs job_at(0), job_at(1), ... to num_jobs, which may share inputs but no outputs.
template <typename JobAt>
void run_jobs(const ExecContext& ctx, int64_t num_jobs, const JobAt& job_at) {
  const int64_t threads = ctx.pool->num_threads();
  int64_t work = 0;  // tiles times row blocks
  for (int64_t i = 0; i < num_jobs; ++i) {
    const Job job = job_at(i);
    CHECK_EQ(job.group.weight->k, job.x.k);
    CHECK(job.x.format == ActivationFormat::kFloat ||
          format_info(job.group.weight->format).is_integer);
    CHECK_EQ(job.group.weight->format == WeightFormat::kInt8Channel,
             job.x.format == ActivationFormat::kInt8Token);
    work += job.num_tiles() * job.row_blocks();
  }
  const int64_t tiles_per_piece = std::max<int64_t>(1, work / (kPiecesPerThread * threads));
  int64_t num_items = 0;
  for (int64_t i = 0; i < num_jobs; ++i) num_items += job_at(i).num_items(tiles_per_piece);
  const int64_t chunk = std::max<int64_t>(1, num_items / (kClaimsPerThread * threads));
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for_chunked(num_items, chunk, [&](int64_t begin, int64_t end, int32_t) {
    int64_t first = 0;  // of job i's items
    for (int64_t i = 0; i < num_jobs && first < end; ++i) {
      const Job job = job_at(i);
      const int64_t next = first + job.num_items(tiles_per_piece);
      for (int64_t item = std::max(begin, first); item < std::min(end, next); ++item) {
        simd.linear(make_block(job, item - first, tiles_per_piece));
      }
      first = next;
    }
  });
}

}  // namespace

void linear(const ExecContext& ctx, const LinearArgs& args) {
  run_jobs(ctx, static_cast<int64_t>(args.groups.size()), [&](int64_t i) {
    return Job{
        .x = args.x, .group = args.groups[static_cast<size_t>(i)], .epilogue = args.epilogue};
  });
}

void linear_experts(const ExecContext& ctx, const LinearExpertsArgs& args) {
  const int64_t each = args.matrices_per_expert;
  run_jobs(ctx, static_cast<int64_t>(args.experts.size()) * each, [&](int64_t i) {
    const int32_t expert = args.experts[static_cast<size_t>(i / each)];
    const ExpertMatrix& matrix = args.matrices[static_cast<size_t>(expert * each + i % each)];
    const int32_t first = args.first[expert];
    return Job{.x = activation_rows(args.x, first, args.count[expert]),
               .group = {.weight = matrix.weight,
                         .out = args.out + first * args.out_stride + matrix.column,
                         .out_stride = args.out_stride,
                         .bias = matrix.bias},
               .epilogue = Epilogue::kStore};
  });
}

}  // namespace sluice::kernels::cpu
