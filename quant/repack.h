// SPDX-License-Identifier: Apache-2.0
// Matrices in the layout that kernels read (layout.h): packing, a GPU's rows, shares of K.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/format.h"

namespace sluice {

// A weight matrix W[n, k] in kernel layout: ceil(n / 16) tiles. Rows past n and float columns past
// k are zero bytes, which are zero weights.
struct PackedWeight {
  WeightFormat format = WeightFormat::kF32;
  int32_t n = 0;
  int32_t k = 0;
  const std::byte* data = nullptr;  // 64-byte aligned, packed_bytes(format, n, k)
  // The columns that the rows or tiles of a rank's share of a matrix hold.
  int32_t first_column = 0;
  int32_t num_columns = 0;  // 0: all of k

  [[nodiscard]] int64_t stored_columns() const { return num_columns == 0 ? k : num_columns; }
};

int64_t packed_tile_bytes(WeightFormat format, int64_t k);
int64_t packed_bytes(WeightFormat format, int64_t n, int64_t k);

// Packs row tiles [tile_begin, tile_end) of `src`, n rows in the checkpoint's form; callers split
// the tiles over threads.
void pack_weight(WeightFormat format,
                 const std::byte* src,
                 int64_t n,
                 int64_t k,
                 int64_t tile_begin,
                 int64_t tile_end,
                 std::byte* dst);

// The largest k whose sums of int8 products fit 32 bits for any codes: 128 * 127 * k < 2^31.
inline constexpr int64_t kMaxChannelK = 131072;

// --- Rows ------------------------------------------------------------------------------------
//
// The form that CUDA kernels read instead of tiles where has_rows(): a matrix's rows in the
// checkpoint's form, each padded with zero bytes to a multiple of 16 (the copy engine's unit);
// then, 64-byte aligned, scales [n] fp32 for kChannel, [n][ceil(k / 128)] fp32 for kBlock128. The
// formats are floats, INT8 with a scale per row, and FP8.

constexpr bool has_rows(WeightFormat format) { return layout_of(format).has_rows(); }

int64_t matrix_row_stride(WeightFormat format, int64_t k);                // bytes
int64_t matrix_row_scales(WeightFormat format, int64_t k);                // fp32 scales of a row
int64_t matrix_scales_offset(WeightFormat format, int64_t n, int64_t k);  // after the rows
int64_t matrix_bytes(WeightFormat format, int64_t n, int64_t k);

// Copies rows [row_begin, row_end) of `src`, rows in the checkpoint's form, to those of `dst`.
void copy_matrix_rows(WeightFormat format,
                      const std::byte* src,
                      int64_t k,
                      int64_t row_begin,
                      int64_t row_end,
                      std::byte* dst);

// --- Shares of K -----------------------------------------------------------------------------

// How a matrix is stored.
enum class MatrixForm : uint8_t { kTiles, kRows };

struct ColumnRange {
  int64_t first = 0;
  int64_t count = 0;
};

// Returns the columns to store for columns [begin, end), whose borders are groups' or K's: tiles
// store whole blocks of groups, rows these columns, with kBlock128 whole blocks of 128.
ColumnRange columns_to_store(
    WeightFormat format, MatrixForm form, int64_t begin, int64_t end, int64_t k);

// Copies those columns of `num_rows` rows, or of the tiles that the rows fill. `src` has all of K,
// `dst` only the columns, in the same form. cut_row_scales() cuts the scales after rows.
void cut_columns(WeightFormat format,
                 MatrixForm form,
                 int64_t k,
                 const ColumnRange& columns,
                 int64_t num_rows,
                 const std::byte* src,
                 std::byte* dst);

// Copies the scales after rows: from [num_rows][matrix_row_scales(format, k)] those of the
// columns.
void cut_row_scales(WeightFormat format,
                    int64_t k,
                    const ColumnRange& columns,
                    int64_t num_rows,
                    const float* src,
                    float* dst);

}  // namespace sluice
