// SPDX-License-Identifier: Apache-2.0
#include "quant/format.h"

#include <algorithm>
#include <array>
#include <bit>

#include "engine/core/status.h"

namespace sluice {
namespace {

#define SLUICE_INFO(format, name, type, k, bytes, element, zero, at, ...) \
  FormatInfo{WeightFormat::format, name, type, k, bytes, at},
constexpr std::array<FormatInfo, kNumWeightFormats> kFormats = {
    {SLUICE_WEIGHT_FORMATS(SLUICE_INFO)}};
#undef SLUICE_INFO

constexpr bool has_type(const FormatInfo& info) { return info.ggml_type != kNoGgmlType; }

constexpr auto kNumTyped = std::ranges::count_if(kFormats, has_type);
static_assert(std::ranges::is_partitioned(kFormats, has_type));

constexpr uint32_t kFloatSign = 0x80000000U;
constexpr uint32_t kFloatInfinity = 0x7f800000U;
constexpr uint32_t kFloatQuietBit = 0x00400000U;

}  // namespace

std::span<const FormatInfo> format_table() { return std::span(kFormats).first(size_t{kNumTyped}); }

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
