// SPDX-License-Identifier: Apache-2.0
// The meaning of a checkpoint's bytes: blocks along K as in GGUF (little-endian). layout.h has a
// row per format, reference.cpp decodes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "quant/layout.h"

namespace sluice {

struct FormatInfo {
  WeightFormat format;
  std::string_view name;   // for people: "Q4_1"
  uint32_t ggml_type;      // type id in GGUF tensor infos; kNoGgmlType: GGUF has none
  int32_t block_elements;  // weights per block along K; without blocks: per block_bytes
  int32_t block_bytes;     // codes alone in formats without blocks
  int32_t scale_offset;    // offset of the block's consecutive fp16 scales and minima, if any
};

// The formats whose rows are blocks or floats: those with a type in GGUF.
std::span<const FormatInfo> format_table();
const FormatInfo& format_info(WeightFormat format);
std::optional<WeightFormat> format_from_ggml_type(uint32_t ggml_type);

// 32 weights of one row of an integer format in their stored form. Weight j is
//   value_of(codes[j]) * (scale * sub_scale[h]) + (min * sub_min[h]),  h = j / 16,
// by PackedLayout; formats without a minimum add nothing. Both products in parentheses are exact in
// fp32. Formats without sub-scales have ones here.
struct QuantizedGroup {
  uint8_t codes[kQuantGroup];
  int32_t sub_scale[2];
  int32_t sub_min[2];
  uint16_t scale_bits;  // in stored form: fp16 or the exponent byte
  uint16_t min_bits;    // fp16, before the sign that `min` has
  float scale;
  float min;  // with sub-minima: the stored value negated, since they are subtracted
};

// Reads group `group` of a row that may start at any byte.
QuantizedGroup read_group(WeightFormat format, const std::byte* row, int64_t group);

// Returns the bytes of one row of k weights; k must be a multiple of block_elements.
int64_t row_bytes(WeightFormat format, int64_t k);

// Gives the bits of ggml's reference: products and sum of a weight are rounded to float, unfused.
void dequantize_row(WeightFormat format, const std::byte* row, int64_t k, float* out);
// Gives the same values without any rounding; the oracle of tests.
void dequantize_row_f64(WeightFormat format, const std::byte* row, int64_t k, double* out);
// Quantizes to nearest by ggml's reference, for tests and the converter. Only F32, F16, BF16, Q4_1
// and Q8_0 have an encoding here.
void quantize_row(WeightFormat format, const float* row, int64_t k, std::byte* out);

// The first block of a row whose scale, minimum or float weight is infinite or NaN.
struct NonFinite {
  int64_t block;
  float value;
};

std::optional<NonFinite> find_non_finite(WeightFormat format, const std::byte* row, int64_t k);

float half_to_float(uint16_t half);   // exact
uint16_t float_to_half(float value);  // round to nearest even
float bf16_to_float(uint16_t value);  // exact
uint16_t float_to_bf16(float value);  // round to nearest even; NaN stays NaN

}  // namespace sluice
