// SPDX-License-Identifier: Apache-2.0
// Weight formats: what a checkpoint's bytes mean. One row per format; block structs as in GGUF
// (little-endian, blocks along K). Reference decoding lives in reference.cpp, the kernel layout in
// repack.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace sluice {

enum class WeightFormat : uint8_t { kF32, kF16, kQ4_1, kQ8_0 };

struct FormatInfo {
  WeightFormat format;
  std::string_view name;   // as GGUF tools print it: "Q4_1"
  uint32_t ggml_type;      // type id in GGUF tensor infos
  int32_t block_elements;  // weights per block along K
  int32_t block_bytes;
  // Integer codes a kernel multiplies: unsigned code minus zero_point, times a scale per 32, plus
  // a minimum per 32 where has_min. Float formats (is_integer false) use float activations only.
  bool is_integer;
  int32_t zero_point;
  bool has_min;
};

std::span<const FormatInfo> format_table();
const FormatInfo& format_info(WeightFormat format);
std::optional<WeightFormat> format_from_ggml_type(uint32_t ggml_type);

struct BlockQ4_1 {
  uint16_t scale;     // fp16
  uint16_t min;       // fp16
  uint8_t codes[16];  // low nibble: element j, high nibble: element j + 16; w = code * d + m
};

static_assert(sizeof(BlockQ4_1) == 20);

struct BlockQ8_0 {
  uint16_t scale;    // fp16
  int8_t codes[32];  // w = code * d
};

static_assert(sizeof(BlockQ8_0) == 34);

inline constexpr int32_t kQuantGroup = 32;  // activation quantization group along absolute k

// Bytes of one row of k weights; k must be a multiple of block_elements.
int64_t row_bytes(WeightFormat format, int64_t k);

// Exact for F32, F16 and both integer formats' codes and scales; the one product and sum of Q4_1
// are rounded to float as ggml's reference does (code * d + m, unfused).
void dequantize_row(WeightFormat format, const std::byte* row, int64_t k, float* out);
// The same values without any rounding; the oracle of tests.
void dequantize_row_f64(WeightFormat format, const std::byte* row, int64_t k, double* out);
// Round-to-nearest quantization as ggml's reference does it; for tests and the converter.
void quantize_row(WeightFormat format, const float* row, int64_t k, std::byte* out);

float half_to_float(uint16_t half);   // exact
uint16_t float_to_half(float value);  // round to nearest even
float bf16_to_float(uint16_t value);  // exact
uint16_t float_to_bf16(float value);  // round to nearest even; NaN stays NaN

}  // namespace sluice
