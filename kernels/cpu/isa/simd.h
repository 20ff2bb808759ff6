// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set as a table of functions. Plain pointers and integers only:
// the instruction-set files must not instantiate anything that other files also use (vec16.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/index_block.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/rows/rows_block.h"
#include "kernels/cpu/rows/sampling_block.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"

namespace sluice::kernels::cpu {

inline constexpr int32_t kMostBlockRows = 64;  // rows of a LinearBlock

// Memory that a later operator reads, in the order in which its worker will read it: runs of equal
// length. A linear kernel brings some of the lines to L2 with every group of weights.
struct alignas(64) LinesAhead {
  static constexpr int32_t kMostRuns = 1024;

  int32_t left = 0;       // lines that this call still brings
  int32_t run = 0;        // index of the next line's run
  int32_t line = 0;       // index of the next line in its run
  int32_t run_lines = 0;  // lines of 64 bytes in a run
  int32_t num_runs = 0;
  const std::byte* runs[kMostRuns];
};

// The least number of products per line brought, so that memory keeps up.
inline constexpr int32_t kProductsPerLine = 1024;

// Row tiles of one weight times rows of activations: out[m, 16 * tile + r].
struct LinearBlock {
  WeightFormat format;
  ActivationFormat activation;
  bool add;                // out += y instead of out = y
  bool one_stream;         // few rows of integers take one tile after the other
  bool unpacks_tiles;      // int8, AVX2 and AVX-512: rows pass over tiles side by side
  bool unpacks_in_passes;  // each pass unpacks weights for itself
  bool scales_rows;        // sums are multiplied with the scales that the tiles begin with
  bool dots_bf16;          // e4m3, AVX-512: with vdpbf16ps, else with fma; the bits are the same
  int32_t num_tiles;       // row tiles, consecutive
  int32_t num_columns;     // outputs that exist, <= 16 * num_tiles
  int32_t num_rows;        // rows of activations, at most kMostBlockRows
  int32_t num_groups;      // groups of x
  int32_t weight_groups;   // groups of all of K
  int32_t groups_before;   // groups of all of K before x's first
  int32_t first_group;     // index of x's first group among those that a tile holds
  int32_t first_segment;
  int32_t num_segments;     // 1, 2, 4 or 8
  const std::byte* weight;  // first tile
  int64_t tile_bytes;
  const void* x;      // codes of the first row, the first of an activation block
  const float* bias;  // bias of the first column, or null
  float* out;         // first row and column
  int64_t out_stride;
  LinesAhead* lines = nullptr;  // the worker's, for int8 activations; null: none
};

// Whether rows that pass over tiles side by side unpack weights again in each pass. AVX-512 does it
// where unpacking uses pipes that products leave free (ExecContext::unpacks_fast): a mask and a
// shift for a register of codes, with the scales beside it. Other formats are faster when unpacked
// once to memory (bench/cpu.md).
constexpr bool is_unpacked_fast(WeightFormat format) {
  const PackedLayout& layout = layout_of(format);
  return layout.code_bits() == 4 && layout.scales == ScaleLayout::kHalfMin;
}

// Tiles that AVX-512 takes side by side (gemm_unpacked_impl.h); AVX2 takes each alone.
inline constexpr int32_t kUnpackedTiles = 3;

// One row of Activations. Kernels write it with write_row (quantize_impl.h).
struct QuantizedRow {
  ActivationFormat format;
  int32_t k;
  // codes to half_sum: of the first group, integer formats only. kInt8Token: scale and code_sum are
  // the row's, sum and half_sum null. e4m3: only codes and scale.
  std::byte* codes;
  float* scale;
  float* sum;
  int32_t* code_sum;
  int32_t* half_sum;
  int64_t group_bytes;  // from one group to the next
  // Formats with a scale for the row, if it is part of a wider row: bits of the whole row's largest
  // magnitude; else -1.
  int32_t magnitude = -1;
  float static_scale = 0;  // likewise; 0: the row has its own
};

// One row of parts that join (kernels/partial_sums.h).
struct PartsRow {
  const float* const* parts;  // the row in each
  int32_t num_parts;          // 2, 4 or 8
  int32_t n;
  bool integers;  // parts hold int32
  // Scales that multiply the joined sum after the row's: the first tile's, with the next tile's
  // tile_bytes further on; null: none.
  const std::byte* scales;
  int64_t tile_bytes;
  const float* row_scale;  // null: none
  const float* bias;       // or null
  bool add;
  float* out;
};

enum class MathFunction : uint8_t { kExp, kLog, kTanh, kSilu };

struct SimdTable {
  // GEMM and norm.
  void (*linear)(const LinearBlock& block);
  void (*quantize_row)(const float* x, const QuantizedRow& out);
  void (*norm_row)(const float* x, const RowNorm& norm, const QuantizedRow& out);
  void (*norm_in_place)(float* x, const RowNorm& norm, int32_t n);
  float (*sum_of_squares)(const float* x, int32_t n);
  void (*scale_by_weights)(float* x, const float* weight, float r, int32_t n);
  // Attention.
  void (*attention_block)(const QueryBlock& block);
  void (*attention_merge)(const QueryBlock& block);
  void (*index_block)(const IndexBlock& block);
  // Rows.
  void (*rope_row)(const RopeRow& row);
  void (*kv_row)(const KvRow& row);
  // `args`: the function and its numbers, not where its rows are.
  void (*gate_mul_row)(const GateMulArgs& args,
                       const float* gate,
                       const float* up,
                       const QuantizedRow& out);
  void (*add_row)(float* x, const float* y, float scale, int32_t n);
  // Likewise.
  void (*scale_row)(const ScaleRowsArgs& args, float* x);
  void (*join_row)(const PartsRow& row);
  int32_t (*row_magnitude)(const float* x, int32_t n);
  void (*moe_route_row)(const MoeRow& row);
  void (*embedding_row)(const EmbeddingRow& row);
  // Sampling.
  LogitScan (*scan_logits)(const LogitRow& row);
  float (*sum_exp)(const LogitRow& row, const SoftmaxSpec& spec);
  void (*weigh_candidates)(const Candidate* from,
                           int32_t count,
                           const SoftmaxSpec& spec,
                           float* weights);
  float (*log_of)(float x);
  int32_t (*gumbel_argmax)(const LogitRow& row,
                           const SoftmaxSpec& spec,
                           const NoiseKey& key,
                           int32_t first);
  void (*count_bands)(const LogitRow& row, float first, uint32_t* counts);
  int32_t (*collect_bands)(
      const LogitRow& row, float first, int32_t begin, int32_t end, Candidate* out);
  // The elementary functions of math16.h, for its tests; n values, a multiple of 16.
  void (*map)(MathFunction function, const float* x, int32_t n, float* out);
};

extern const SimdTable kScalarTable;
extern const SimdTable kAvx2Table;
extern const SimdTable kAvx512Table;
extern const SimdTable kAmxTable;  // AVX-512's, with linear_amx.cpp

const SimdTable& simd_table(Isa isa);

// Returns row `row` of Activations.
QuantizedRow quantized_row(const Activations& activations, int64_t row);

// Returns the number of rows that a worker should claim at a time when it writes Activations: rows
// of one block share cache lines.
int64_t rows_per_claim(int64_t num_rows);

}  // namespace sluice::kernels::cpu
