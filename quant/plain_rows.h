// SPDX-License-Identifier: Apache-2.0
// The form between the spellings of checkpoints and the packed formats of kernels: one byte a code,
// scales as floats. What reads a checkpoint's companions gives it, pack_plain makes tiles of it,
// and its values without any rounding are the oracle of both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quant/repack.h"

namespace sluice {

enum class CodeKind : uint8_t {
  kInt4,  // 0 to 15, stored ones
  kInt8,  // two's complement
  kE4M3,  // finite ones
  kE2M1,  // 0 to 15: the sign is bit 3
};

// Some rows [rows][k] of a matrix; the memory is that of the caller. Scales and zero points belong
// to `group` columns each, the last to what is left of k.
struct PlainRows {
  CodeKind code = CodeKind::kInt8;
  int32_t rows = 0;
  int64_t k = 0;
  const uint8_t* codes = nullptr;  // [rows][k]
  int32_t group = 0;               // weights per scale along k; 0: one scale for the row
  // [rows][scales_per_row()], finite, exactly those of the checkpoint: of kE2M1 per 16 values of
  // e4m3, per 32 powers of two from 2^-127 to 2^127.
  const float* scales = nullptr;
  // [rows][scales_per_row()], what is taken off a code: of kInt4 0 to 255, of kInt8 two's
  // complement. Null: of kInt4 8, of others 0. None of kE4M3 and kE2M1.
  const uint8_t* zeros = nullptr;
  const float* row_scales = nullptr;  // [rows], multipliers of kE2M1 per 16; null: ones

  [[nodiscard]] constexpr int64_t scales_per_row() const {
    return group == 0 ? 1 : (k + group - 1) / group;
  }
};

// A code less its zero point, which e4m3 and e2m1 have not.
double code_value(CodeKind kind, uint8_t code, uint8_t zero);
// (code - zero point) * scale * row scale, unrounded.
double plain_value(const PlainRows& rows, int64_t row, int64_t column);

// The packed format of such a matrix; none: there is no kernel for it. Groups longer than a
// format's repeat their scale. `int8_rows`: its activations are int8 with a scale per row.
std::optional<WeightFormat> plain_format(CodeKind code,
                                         int32_t group,
                                         bool has_zeros,
                                         bool int8_rows);

// Writes one tile, packed_tile_bytes(format, rows.k), of at most 16 rows. `format` is that of
// plain_format() or kMXFP4. Rows past the last weigh 0; columns past k have the code of weight 0,
// or the nearest to it, and blocks of groups past k are zero bytes.
void pack_plain(WeightFormat format, const PlainRows& rows, std::byte* tile);

// Of formats with has_rows(): the rows' codes as a device reads them, rows.rows of
// matrix_row_stride(format, rows.k), and what belongs behind all rows of a matrix for these rows,
// rows.rows of matrix_row_scales(format, rows.k).
void copy_plain_codes(WeightFormat format, const PlainRows& rows, std::byte* dst);
void copy_plain_scales(WeightFormat format, const PlainRows& rows, float* dst);

}  // namespace sluice
