// SPDX-License-Identifier: Apache-2.0
// The form between the spellings of checkpoints and the packed formats of kernels: one byte a code,
// scales as floats. PlainReader makes it from a checkpoint's tensors, pack_plain makes tiles of it,
// and its unrounded values are the oracle of both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quant/repack.h"

namespace sluice {

enum class CodeKind : uint8_t {
  kInt4,  // 0 to 15, in stored form
  kInt8,  // two's complement
  kE4M3,  // finite ones
  kE2M1,  // 0 to 15: the sign is bit 3
};

// Some rows [rows][k] of a matrix; the caller owns the memory. A scale or a zero point belongs to
// `group` columns, the last one to the rest of k.
struct PlainRows {
  CodeKind code = CodeKind::kInt8;
  int32_t rows = 0;
  int64_t k = 0;
  const uint8_t* codes = nullptr;  // [rows][k]
  int32_t group = 0;               // weights per scale along k; 0: one scale for the row
  // [rows][scales_per_row()], finite, exactly the checkpoint's: with kE2M1 per 16 values of e4m3,
  // per 32 powers of two from 2^-127 to 2^127.
  const float* scales = nullptr;
  // [rows][scales_per_row()], subtracted from codes: with kInt4 0 to 255, with kInt8 two's
  // complement. Null: 8 for kInt4, else 0. kE4M3 and kE2M1 have none.
  const uint8_t* zeros = nullptr;
  const float* row_scales = nullptr;  // [rows], multipliers for kE2M1 per 16; null: ones

  [[nodiscard]] constexpr int64_t scales_per_row() const {
    return group == 0 ? 1 : (k + group - 1) / group;
  }
};

// Returns a code less its zero point; e4m3 and e2m1 have no zero points.
double code_value(CodeKind kind, uint8_t code, uint8_t zero);
// Returns (code - zero point) * scale * row scale, unrounded.
double plain_value(const PlainRows& rows, int64_t row, int64_t column);

// Returns the codes that pack_plain takes for a format; none: its rows are floats or blocks.
std::optional<CodeKind> plain_code(WeightFormat format);
// Returns the packed format of such a matrix; none: no kernel takes it. Groups longer than a
// format's repeat their scale. `int8_rows`: its activations are int8 with a scale per row.
std::optional<WeightFormat> plain_format(CodeKind code,
                                         int32_t group,
                                         bool has_zeros,
                                         bool int8_rows);

// Writes one tile, packed_tile_bytes(format, rows.k), of at most 16 rows. `format` is
// plain_format()'s. Rows past the last weigh 0. Columns past k have the code of weight 0,
// or the nearest to it, and blocks of groups past k are zero bytes.
void pack_plain(WeightFormat format, const PlainRows& rows, std::byte* tile);

// For formats with has_rows(): write the rows' codes in the device's layout, rows.rows of
// matrix_row_stride(format, rows.k), and the part of the scales after a matrix's rows that belongs
// to these rows, rows.rows of matrix_row_scales(format, rows.k).
void copy_plain_codes(WeightFormat format, const PlainRows& rows, std::byte* dst);
void copy_plain_scales(WeightFormat format, const PlainRows& rows, float* dst);

}  // namespace sluice
