// SPDX-License-Identifier: Apache-2.0
// Encodes floats in the number formats of checkpoints. The result depends only on the weights,
// their importance and the options, not on threads or on how rows are divided (E4M3Block: as long
// as blocks of 128 rows stay together).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "quant/format.h"
#include "quant/scheme.h"

namespace sluice {

// Formats whose codes and scales are tensors of their own.
enum class CodeScheme : uint8_t {
  kInt8Channel,  // int8, a scale per row
  kInt4Group,    // 0..15 for -8..7, a BF16 scale per row and group
  kInt4Zeros,    // 0..15 less a zero point of 0..15 stored beside each scale
  kE4M3Tensor,   // e4m3, one scale
  kE4M3Channel,  // e4m3, a scale per row
  kE4M3Block,    // e4m3, a scale per 128 x 128 weights
  kNvfp4,        // e2m1, an e4m3 scale per row and 16 weights, one multiplier
  kMxfp4,        // e2m1, a power of two per row and 32 weights
};

struct SchemeInfo {
  CodeScheme scheme;
  CodeKind code;
  ScalePlace place;
  int32_t group = 0;  // weights per scale along K by default; 0: a row has one
  ScaleType scales = ScaleType::kFloat;
  bool has_zeros = false;       // zero points beside the scales
  bool has_multiplier = false;  // scales are multiplied by one of the whole matrix

  // Whether matrix_scale() depends on the matrix.
  [[nodiscard]] bool has_matrix_scale() const {
    return place == ScalePlace::kMatrix || has_multiplier;
  }
};

const SchemeInfo& scheme_info(CodeScheme scheme);

struct Encoding {
  CodeScheme scheme = CodeScheme::kInt8Channel;
  int32_t group = 0;   // weights per scale along K; 0: a row has one
  bool search = true;  // the scale of least squared error; else that of the largest magnitude
};

// Consecutive rows of a matrix, all finite. kE4M3Block: 128 rows, or the matrix's last.
struct FloatRows {
  const float* x = nullptr;           // [rows][k]
  const float* importance = nullptr;  // [k], weights of squared errors by column; null: 1
  int64_t rows = 0;
  int64_t k = 0;

  [[nodiscard]] const float* row(int64_t r) const { return x + r * k; }
};

// Returns what a whole matrix shares, given its largest magnitude: the scale of kE4M3Tensor, or the
// multiplier of kNvfp4, a power of two, so that its reciprocal, which some checkpoints store, is
// exact. 1 for other schemes.
float matrix_scale(const Encoding& encoding, float largest_magnitude);

// [rows][ceil(k / group)], or [rows] without groups, rounded as they are stored: BF16 for 4-bit
// integers, e4m3 for kNvfp4, powers of two for kMxfp4, else fp32; kE4M3Tensor: matrix_scale.
struct RowScales {
  float* scales;
  uint8_t* zeros = nullptr;  // for kInt4Zeros
};

void choose_scales(const Encoding& encoding,
                   const FloatRows& in,
                   float matrix_scale,
                   const RowScales& out);

// Writes codes, [rows][k], a byte a weight: the nearest under its scale, halves to even.
void encode_codes(const Encoding& encoding,
                  const FloatRows& in,
                  float matrix_scale,
                  const RowScales& scales,
                  uint8_t* codes);

// The code nearest to x / scale, and a code's value before its scale. `zero`, which is subtracted
// from codes of 4-bit integers, is kMiddleOfInt4 for kInt4Group.
inline constexpr uint8_t kMiddleOfInt4 = 8;
uint8_t nearest_code(CodeScheme scheme, float x, double scale, uint8_t zero = kMiddleOfInt4);
float code_value(CodeScheme scheme, uint8_t code, uint8_t zero = kMiddleOfInt4);

// Encodes a row in blocks of GGUF, scales included, in any format of format_table(): floats and
// Q8_0 to the bytes of quantize_row(), others with scales (and minima) from a search for the least
// error. importance: [k], weights of squared errors by column; null: 1.
void encode_blocks(
    WeightFormat format, const float* row, const float* importance, int64_t k, std::byte* out);

// Replaces the codes of a group of 32 in a row of blocks, in read_group()'s form; scales stay. Not
// for Q8_0 and floats.
void replace_codes(WeightFormat format, int64_t group, const uint8_t* codes, std::byte* row);

}  // namespace sluice
