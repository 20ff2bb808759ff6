// SPDX-License-Identifier: Apache-2.0
#include "quant/format.h"

#include <array>
#include <bit>

#include "engine/core/status.h"

namespace sluice {
namespace {

// One row per WeightFormat, in its order, so that format_info() is an index.
// clang-format off
constexpr std::array<FormatInfo, kNumWeightFormats> kFormats = {{
    // format, name, ggml type, block elements and bytes, integer, zero point, codebook, minimum,
    // offset and number of fp16 scales
    {WeightFormat::kF32,    "F32",    0,  1,   4,   false, 0,   nullptr,        false, 0,   0},
    {WeightFormat::kF16,    "F16",    1,  1,   2,   false, 0,   nullptr,        false, 0,   0},
    {WeightFormat::kBF16,   "BF16",   30, 1,   2,   false, 0,   nullptr,        false, 0,   0},
    {WeightFormat::kQ4_0,   "Q4_0",   2,  32,  18,  true,  8,   nullptr,        false, 0,   1},
    {WeightFormat::kQ4_1,   "Q4_1",   3,  32,  20,  true,  0,   nullptr,        true,  0,   2},
    {WeightFormat::kQ5_0,   "Q5_0",   6,  32,  22,  true,  16,  nullptr,        false, 0,   1},
    {WeightFormat::kQ5_1,   "Q5_1",   7,  32,  24,  true,  0,   nullptr,        true,  0,   2},
    {WeightFormat::kQ8_0,   "Q8_0",   8,  32,  34,  true,  128, nullptr,        false, 0,   1},
    {WeightFormat::kQ2_K,   "Q2_K",   10, 256, 84,  true,  0,   nullptr,        true,  80,  2},
    {WeightFormat::kQ3_K,   "Q3_K",   11, 256, 110, true,  4,   nullptr,        false, 108, 1},
    {WeightFormat::kQ4_K,   "Q4_K",   12, 256, 144, true,  0,   nullptr,        true,  0,   2},
    {WeightFormat::kQ5_K,   "Q5_K",   13, 256, 176, true,  0,   nullptr,        true,  0,   2},
    {WeightFormat::kQ6_K,   "Q6_K",   14, 256, 210, true,  32,  nullptr,        false, 208, 1},
    {WeightFormat::kIQ4_NL, "IQ4_NL", 20, 32,  18,  true,  0,   kIq4Codebook,   false, 0,   1},
    {WeightFormat::kIQ4_XS, "IQ4_XS", 23, 256, 136, true,  0,   kIq4Codebook,   false, 0,   1},
    {WeightFormat::kMXFP4,  "MXFP4",  39, 32,  17,  true,  0,   kMxfp4Codebook, false, 0,   0},
    {WeightFormat::kInt8Channel,  "INT8",         kNoGgmlType, 1, 1, true,  128, nullptr, false, 0, 0},
    {WeightFormat::kNVFP4,        "NVFP4",        kNoGgmlType, 2, 1, true,  0, kMxfp4Codebook, false, 0, 0},
    {WeightFormat::kInt4Group32,  "INT4 per 32",  kNoGgmlType, 2, 1, true,  0, nullptr, false, 0, 0},
    {WeightFormat::kInt4Group128, "INT4 per 128", kNoGgmlType, 2, 1, true,  0, nullptr, false, 0, 0},
    {WeightFormat::kInt8Group32,  "INT8 per 32",  kNoGgmlType, 1, 1, true,  0, nullptr, false, 0, 0},
    {WeightFormat::kE4M3Channel,  "FP8",          kNoGgmlType, 1, 1, false, 0, nullptr, false, 0, 0},
    {WeightFormat::kE4M3Block,    "FP8 per 128",  kNoGgmlType, 1, 1, false, 0, nullptr, false, 0, 0},
}};

// clang-format on

constexpr bool rows_in_enum_order() {
  for (size_t i = 0; i < kFormats.size(); ++i) {
    if (static_cast<size_t>(kFormats[i].format) != i) return false;
  }
  return true;
}

static_assert(rows_in_enum_order());

constexpr uint32_t kFloatSign = 0x80000000U;
constexpr uint32_t kFloatInfinity = 0x7f800000U;
constexpr uint32_t kFloatQuietBit = 0x00400000U;

}  // namespace

std::span<const FormatInfo> format_table() {
  return std::span(kFormats).first(static_cast<size_t>(WeightFormat::kInt8Channel));
}

const FormatInfo& format_info(WeightFormat format) {
  const auto row = static_cast<size_t>(format);
  CHECK_LT(row, kFormats.size());
  return kFormats[row];
}

std::optional<WeightFormat> format_from_ggml_type(uint32_t ggml_type) {
  for (const FormatInfo& info : format_table()) {
    if (info.ggml_type == ggml_type) return info.format;
  }
  return std::nullopt;
}

int64_t row_bytes(WeightFormat format, int64_t k) {
  const FormatInfo& info = format_info(format);
  CHECK_GE(k, 0);
  CHECK_EQ(k % info.block_elements, 0);
  return k / info.block_elements * info.block_bytes;
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fU;
  const uint32_t fraction = half & 0x3ffU;
  if (exponent == 0x1f) {
    // Signalling NaNs become quiet, like by the conversion instructions.
    const uint32_t quiet = fraction == 0 ? 0 : kFloatQuietBit;
    return std::bit_cast<float>(sign | kFloatInfinity | quiet | (fraction << 13));
  }
  if (exponent == 0) {
    // Zero or subnormal: fraction * 2^-24 is a normal float, so the product is exact.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 127 - 15) << 23) | (fraction << 13));
}

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & kFloatSign) >> 16;
  const uint32_t magnitude = bits & ~kFloatSign;
  if (magnitude > kFloatInfinity) {
    return static_cast<uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  }
  // 65520 is halfway between the largest half and 2^16; ties go to the even one, infinity.
  if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);
  if (magnitude < 0x38800000U) {  // below 2^-14: subnormal, a multiple of 2^-24
    // Adding 0.5 puts the unit in the last place at 2^-24, so the hardware rounds for us.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  const uint32_t odd = (magnitude >> 13) & 1U;
  const uint32_t rounded = magnitude + 0xfffU + odd;
  return static_cast<uint16_t>(sign | ((rounded - ((127U - 15U) << 23)) >> 13));
}

float bf16_to_float(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & ~kFloatSign) > kFloatInfinity) {
    return static_cast<uint16_t>((bits | kFloatQuietBit) >> 16);
  }
  const uint32_t odd = (bits >> 16) & 1U;
  return static_cast<uint16_t>((bits + 0x7fffU + odd) >> 16);
}

}  // namespace sluice
