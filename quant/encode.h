// SPDX-License-Identifier: Apache-2.0
// Floats to the number formats that checkpoints are written in. What is written depends on the
// weights, their importance and the options alone: not on threads, not on how rows are divided
// (E4M3Block: as long as blocks of 128 rows stay together).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "quant/format.h"

namespace sluice {

// Formats whose codes and scales are tensors of their own.
enum class CodeScheme : uint8_t {
  kInt8Channel,  // int8, a scale per row
  kInt4Group,    // 0..15 for -8..7, a BF16 scale per row and group
  kInt4Zeros,    // 0..15 less a zero point of 0..15 that lies beside each scale
  kE4M3Tensor,   // e4m3, one scale
  kE4M3Channel,  // e4m3, a scale per row
  kE4M3Block,    // e4m3, a scale per 128 x 128 weights
  kNvfp4,        // e2m1, an e4m3 scale per row and 16 weights, one multiplier
  kMxfp4,        // e2m1, a power of two per row and 32 weights
};

struct Encoding {
  CodeScheme scheme = CodeScheme::kInt8Channel;
  int32_t group = 0;   // weights per scale along K; 0: a row has one
  bool search = true;  // the scale of least squared error; else that of the largest magnitude
};

// Group of a scheme where the caller names none: 128 of 4-bit integers, 16, 32, 128, else 0.
int32_t default_group(CodeScheme scheme);
// Codes of 4 bits, two of which lie in a byte; the others have 8.
bool is_four_bits(CodeScheme scheme);

// Some rows of a matrix, one behind the other, all finite. kE4M3Block: 128 or the matrix's last.
struct FloatRows {
  const float* x = nullptr;           // [rows][k]
  const float* importance = nullptr;  // [k], what a squared error counts in a column; null: 1
  int64_t rows = 0;
  int64_t k = 0;

  [[nodiscard]] const float* row(int64_t r) const { return x + r * k; }
};

// What a whole matrix shares, from the largest magnitude of all of it: the scale of kE4M3Tensor,
// and of kNvfp4 the multiplier, which is a power of two so that its reciprocal is exact, as some
// checkpoints store that. 1 for other schemes.
float matrix_scale(const Encoding& encoding, float largest_magnitude);

// [rows][ceil(k / group)], or [rows] without groups. Scales are as exactly as they are stored: BF16
// of 4-bit integers, e4m3 of kNvfp4, powers of two of kMxfp4, else fp32; kE4M3Tensor: matrix_scale.
struct RowScales {
  float* scales;
  uint8_t* zeros = nullptr;  // of kInt4Zeros
};

void choose_scales(const Encoding& encoding,
                   const FloatRows& in,
                   float matrix_scale,
                   const RowScales& out);

// codes: [rows][k], a byte a weight, each the nearest one under its scale, halves to even.
void encode_codes(const Encoding& encoding,
                  const FloatRows& in,
                  float matrix_scale,
                  const RowScales& scales,
                  uint8_t* codes);

// The code nearest to x / scale, and what a code stands for before its scale. `zero`: what is taken
// off a code of 4-bit integers; kInt4Group's is the one that is given here.
inline constexpr uint8_t kMiddleOfInt4 = 8;
uint8_t nearest_code(CodeScheme scheme, float x, double scale, uint8_t zero = kMiddleOfInt4);
float code_value(CodeScheme scheme, uint8_t code, uint8_t zero = kMiddleOfInt4);
bool is_four_bit_integer(CodeScheme scheme);
// Whether a scheme has zero points beside its scales.
bool has_zeros(CodeScheme scheme);

// Blocks of GGUF, scales included, of any format of format_table(): of floats and Q8_0 the bytes of
// quantize_row(), of the others those whose scales (and minima) a search for the least error found.
// importance: [k], what a squared error counts in a column; null: 1.
void encode_blocks(
    WeightFormat format, const float* row, const float* importance, int64_t k, std::byte* out);

// Other codes of a group of 32 in a row of such blocks, but for Q8_0 and floats, whose scales stay:
// [32], as read_group() gives them.
void replace_codes(WeightFormat format, int64_t group, const uint8_t* codes, std::byte* row);

}  // namespace sluice
