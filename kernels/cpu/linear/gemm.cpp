// SPDX-License-Identifier: Apache-2.0
// Cuts linear layers into tiles for the pool. Results do not depend on the cuts.
#include "kernels/gemm.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/linear/read_ahead.h"
#include "kernels/cpu/rows/row_operators.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/moe.h"

namespace sluice::kernels::cpu {
namespace {

// Rows of activations per tile of work: their codes and scales fit L2 beside a weight tile.
constexpr int32_t kRowBlock = kMostBlockRows;
static_assert(kRowBlock % kActivationRows == 0);

// With so few rows the caller finishes: moving them to the core that ended last takes longer.
constexpr int32_t kRowsOfCaller = 2;

// With steps to follow, few rows are cut so that every thread has some to finish: into at most as
// many blocks as there may be threads, of at most kRowBlock rows.
constexpr int64_t kMaxRowBlocks = kMaxThreads;

int32_t row_block_for_steps(int64_t num_rows, int64_t threads) {
  const int64_t rows = align_up(ceil_div(num_rows, threads), kActivationRows);
  return static_cast<int32_t>(std::clamp<int64_t>(rows, kActivationRows, kRowBlock));
}

// Whether passes over tiles side by side unpack weights themselves.
bool unpacks_in_passes(const ExecContext& ctx, WeightFormat format) {
  return ctx.isa == Isa::kAvx512 && ctx.unpacks_fast && is_unpacked_fast(format);
}

// Whether kernels pass over tiles side by side, which are unpacked once for all of a block's rows
// or by each pass.
bool unpacks_tiles(const ExecContext& ctx,
                   const Activations& x,
                   WeightFormat format,
                   int64_t block_rows) {
  // With fewer rows, unpacking to memory, or again in each pass, takes longer than it saves.
  constexpr int64_t kFewest = 16;
  constexpr int32_t kLongRow = 2048;
  if (is_e4m3(x.format)) return block_rows >= kFewest;
  if (x.format != ActivationFormat::kInt8 || ctx.isa == Isa::kScalar) return false;
  if (ctx.isa != Isa::kAvx512 || !ctx.unpacks_fast) return block_rows >= kFewest;
  const bool is_long = x.k >= kLongRow;
  if (is_unpacked_fast(format)) return block_rows >= (is_long ? 24 : kFewest);
  return block_rows >= (is_long ? 48 : 32);
}

// Whether the steps get a fork of their own, after all rows. They do for more rows than the blocks
// may hold, and for few rows, which one thread would finish alone. They also do for rows that pass
// over the same tiles, which are then not cut: a fork takes less than unpacking all weights once
// more, as long as there are enough tiles that no thread waits long for the last.
bool should_finish_afterwards(const ExecContext& ctx, const LinearArgs& args) {
  constexpr int64_t kLeastTilesPerThread = 4 * kUnpackedTiles;
  const int64_t rows = args.x.num_rows;
  const int64_t threads = ctx.pool->num_threads();
  if (rows > kMaxRowBlocks * kRowBlock) return true;
  if (threads == 1) return false;
  if (rows <= kActivationRows) return rows > rows_per_claim(rows);
  if (row_block_for_steps(rows, threads) == kRowBlock) return false;
  int64_t tiles = 0;
  for (const RowGroup& group : args.groups) {
    if (!unpacks_tiles(ctx, args.x, group.weight->format, rows)) return false;
    tiles += ceil_div(group.weight->n, kRowTile);
  }
  return tiles >= kLeastTilesPerThread * threads;
}

// Whether kernels bring lines for attention: those for int8 activations do, without AMX, unless so
// few rows pass that they wait for their own weights.
bool brings_lines(const ExecContext& ctx, const Activations& x) {
  constexpr int32_t kFewestRows = 5;
  const bool is_integer =
      x.format == ActivationFormat::kInt8 || x.format == ActivationFormat::kInt8Token;
  if (!is_integer || x.num_rows < kFewestRows || ctx.read_ahead == nullptr) return false;
  return ctx.isa == Isa::kAvx2 || ctx.isa == Isa::kAvx512 ||
         (ctx.isa == Isa::kAmx && x.num_rows <= kActivationRows);
}

// The most tiles of a piece of work: a multiple of what kernels take at once, and more where
// several row blocks pass over the same weights, so that a block's activations stay close.
constexpr int64_t kMaxPieceTiles = 16;
constexpr int64_t kPiecesPerThread = 16;

// A claim takes this share of what is left of a thread's part, so that a worker that loses its core
// for a while holds back little.
constexpr int64_t kClaimsPerPart = 4;

// One matrix over its rows.
struct Job {
  Activations x;
  RowGroup group;
  Epilogue epilogue;
  int32_t row_block = kRowBlock;  // a multiple of kActivationRows
  Segments segments = {};
  ReadAhead* ahead = nullptr;  // brought by kernels on the way; null: nothing

  [[nodiscard]] int64_t num_tiles() const { return ceil_div(group.weight->n, kRowTile); }

  [[nodiscard]] int64_t row_blocks() const { return ceil_div(x.num_rows, row_block); }

  [[nodiscard]] int64_t piece_tiles(const ExecContext& ctx) const {
    const bool unpacks =
        is_e4m3(x.format) ||
        unpacks_tiles(ctx, x, group.weight->format, std::min(x.num_rows, row_block));
    const int64_t least = unpacks ? kUnpackedTiles : 2;
    if (row_blocks() == 1) return least;
    const int64_t even = num_tiles() * row_blocks() / (kPiecesPerThread * ctx.pool->num_threads());
    return std::clamp(even, least, kMaxPieceTiles) / least * least;
  }

  // Returns the number of pieces, each for every row block.
  [[nodiscard]] int64_t num_items(const ExecContext& ctx) const {
    return ceil_div(num_tiles(), piece_tiles(ctx)) * row_blocks();
  }
};

// Returns `pieces` pieces from that of `item` on, for its row block. Row blocks vary fastest: a
// piece of weights is read from memory once.
LinearBlock make_block(const ExecContext& ctx,
                       const Job& job,
                       int64_t item,
                       int64_t pieces,
                       int64_t piece_tiles,
                       int32_t worker) {
  const RowGroup& group = job.group;
  const PackedWeight& weight = *group.weight;
  const int64_t tile_bytes = packed_tile_bytes(weight.format, weight.stored_columns());
  const int64_t tile = item / job.row_blocks() * piece_tiles;
  const int64_t tiles = std::min(pieces * piece_tiles, job.num_tiles() - tile);
  const int64_t column = tile * kRowTile;
  const int64_t row = item % job.row_blocks() * job.row_block;
  const int64_t rows = std::min<int64_t>(job.row_block, job.x.num_rows - row);
  const int64_t groups_before = job.segments.first_group(weight.k);
  return {
      .format = weight.format,
      .activation = job.x.format,
      .add = job.epilogue == Epilogue::kAdd,
      .one_stream = ctx.one_stream,
      .unpacks_tiles = unpacks_tiles(ctx, job.x, weight.format, rows),
      .unpacks_in_passes = unpacks_in_passes(ctx, weight.format),
      .scales_rows = job.segments.are_all() && layout_of(weight.format).scales_folded_sums(),
      .dots_bf16 = ctx.dots_bf16,
      .num_tiles = static_cast<int32_t>(tiles),
      .num_columns = static_cast<int32_t>(std::min<int64_t>(tiles * kRowTile, weight.n - column)),
      .num_rows = static_cast<int32_t>(rows),
      .num_groups = static_cast<int32_t>(ceil_div(job.x.k, kQuantGroup)),
      .weight_groups = static_cast<int32_t>(ceil_div(weight.k, kQuantGroup)),
      .groups_before = static_cast<int32_t>(groups_before),
      .first_group = static_cast<int32_t>(groups_before) - weight.first_column / kQuantGroup,
      .first_segment = job.segments.first,
      .num_segments = job.segments.count,
      .weight = weight.data + tile * tile_bytes,
      .tile_bytes = tile_bytes,
      .x = quantized_row(job.x, row).codes,
      .bias = group.bias == nullptr ? nullptr : group.bias + column,
      .out = group.out + row * group.out_stride + column,
      .out_stride = group.out_stride,
      .lines = job.ahead == nullptr ? nullptr : job.ahead->lines(worker)};
}

// The steps that follow: the worker that ran the last piece of a row block runs them on its rows.
class StepsAfter {
 public:
  StepsAfter(const SimdTable& simd, const RowSteps* steps) : simd_(simd), steps_(steps) {}

  // Called before any piece is done: each row block has `pieces` of them.
  void expect(int64_t row_blocks, int64_t pieces) {
    if (steps_ == nullptr) return;
    CHECK_LE(row_blocks, kMaxRowBlocks);
    std::fill_n(left_.begin(), row_blocks, static_cast<int32_t>(pieces));
  }

  void done(const Job& job, int64_t row_block, int64_t pieces) {
    if (steps_ == nullptr) return;
    const auto count = static_cast<int32_t>(pieces);
    const std::atomic_ref<int32_t> left(left_[static_cast<size_t>(row_block)]);
    if (left.fetch_sub(count, std::memory_order_acq_rel) != count) return;
    const int64_t begin = row_block * job.row_block;
    run_rows(simd_, *steps_, begin, std::min<int64_t>(begin + job.row_block, job.x.num_rows));
  }

 private:
  const SimdTable& simd_;
  const RowSteps* steps_;
  std::array<int32_t, kMaxRowBlocks> left_;
};

// Runs job_at(0 .. num_jobs - 1), which may share inputs, not outputs; the same rows with `steps`.
template <typename JobAt>
void run_jobs(const ExecContext& ctx,
              int64_t num_jobs,
              const JobAt& job_at,
              const RowSteps* steps = nullptr) {
  const SimdTable& simd = simd_table(ctx.isa);
  StepsAfter after(simd, steps);
  int64_t num_items = 0;
  for (int64_t i = 0; i < num_jobs; ++i) {
    const Job job = job_at(i);
    CHECK_EQ(job.segments.num_columns(job.group.weight->k), job.x.k);
    DCHECK(job.segments.are_all() ||
           (job.group.bias == nullptr && job.epilogue == Epilogue::kStore));
    CHECK(has_activations(job.group.weight->format, job.x.format));
    CHECK(job.x.format != ActivationFormat::kE4M3Group ||
          job.segments.first_column(job.group.weight->k) % kE4M3GroupColumns == 0);
    num_items += job.num_items(ctx);
  }
  if (steps != nullptr && num_items > 0) {
    after.expect(job_at(0).row_blocks(), num_items / job_at(0).row_blocks());
  }
  const auto items = [&](int64_t begin, int64_t end, int32_t worker) {
    int64_t first = 0;  // first item of job i
    for (int64_t i = 0; i < num_jobs && first < end; ++i) {
      const Job job = job_at(i);
      const int64_t next = first + job.num_items(ctx);
      const int64_t piece_tiles = job.piece_tiles(ctx);
      const int64_t last = std::min(end, next);
      // With one row block, consecutive items are consecutive tiles.
      const int64_t step = job.row_blocks() == 1 ? last : 1;
      for (int64_t item = std::max(begin, first); item < last; item += step) {
        const int64_t pieces = std::min(step, last - item);
        simd.linear(make_block(ctx, job, item - first, pieces, piece_tiles, worker));
        after.done(job, (item - first) % job.row_blocks(), pieces);
      }
      first = next;
    }
  };
  ctx.pool->parallel_for_chunked(num_items, {.shares = kClaimsPerPart}, items);
}

}  // namespace

void linear(const ExecContext& ctx, const LinearArgs& args) {
  const int64_t num_rows = args.x.num_rows;
  const bool by_caller = num_rows <= kRowsOfCaller;
  const bool afterwards = should_finish_afterwards(ctx, args);
  const RowSteps* const then = by_caller || afterwards ? nullptr : args.then;
  const int32_t row_block =
      then == nullptr ? kRowBlock : row_block_for_steps(num_rows, ctx.pool->num_threads());
  ReadAhead* const ahead = brings_lines(ctx, args.x) ? ctx.read_ahead : nullptr;
  if (ahead != nullptr) {
    int64_t outputs = 0;
    for (const RowGroup& group : args.groups) outputs += group.weight->n;
    ahead->share(outputs * args.x.k, num_rows);
  }
  const auto job_at = [&](int64_t i) {
    return Job{.x = args.x,
               .group = args.groups[static_cast<size_t>(i)],
               .epilogue = args.epilogue,
               .row_block = row_block,
               .segments = args.segments,
               .ahead = ahead};
  };
  run_jobs(ctx, static_cast<int64_t>(args.groups.size()), job_at, then);
  if (args.then == nullptr || then != nullptr) return;
  const SimdTable& simd = simd_table(ctx.isa);
  if (by_caller) return run_rows(simd, *args.then, 0, num_rows);
  const auto rows = [&](int64_t begin, int64_t end, int32_t) {
    run_rows(simd, *args.then, begin, end);
  };
  ctx.pool->parallel_for_chunked(num_rows, {.chunk = rows_per_claim(num_rows)}, rows);
}

void linear_experts(const ExecContext& ctx, const LinearExpertsArgs& args) {
  const int64_t each = args.matrices_per_expert;
  const ExpertRows& rows = args.rows;
  const auto any = std::ranges::find_if(
      args.matrices, [](const ExpertMatrix& matrix) { return matrix.weight != nullptr; });
  run_jobs(ctx, *rows.num_chosen * each, [&](int64_t i) {
    const int32_t expert = rows.chosen[i / each];
    const ExpertMatrix& matrix = args.matrices[static_cast<size_t>(expert * each + i % each)];
    const int32_t first = rows.first[expert];
    const bool has_product = matrix.weight != nullptr;
    return Job{.x = activation_rows(args.x, first, has_product ? rows.count[expert] : 0),
               .group = {.weight = has_product ? matrix.weight : any->weight,
                         .out = args.out + first * args.out_stride + matrix.column,
                         .out_stride = args.out_stride,
                         .bias = matrix.bias},
               .epilogue = Epilogue::kStore,
               .segments = args.segments};
  });
}

}  // namespace sluice::kernels::cpu
