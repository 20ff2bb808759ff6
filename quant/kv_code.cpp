// SPDX-License-Identifier: Apache-2.0
#include "quant/kv_code.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/core/status.h"

namespace sluice {

float e4m3_to_float(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((code & 0x7F) == 0x7F) magnitude = std::numeric_limits<float>::quiet_NaN();
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

uint8_t float_to_e4m3(float value) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (!(magnitude <= 464.0F)) return static_cast<uint8_t>(sign | 0x7F);
  // Codes ascend with their magnitudes. The nearest of 127 wins, the even one of two equally near.
  int nearest = 0;
  for (int code = 1; code < 0x7F; ++code) {
    const double here =
        std::fabs(double{magnitude} - double{e4m3_to_float(static_cast<uint8_t>(code))});
    const double best =
        std::fabs(double{magnitude} - double{e4m3_to_float(static_cast<uint8_t>(nearest))});
    if (here < best || (here == best && code % 2 == 0)) nearest = code;
  }
  return static_cast<uint8_t>(sign | nearest);
}

uint8_t e4m3_code(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const float magnitude = std::fabs(value);
  const uint32_t code = magnitude < 0x1p-6F ? static_cast<uint32_t>(magnitude * 0x1p9F)
                                            : ((bits & 0x7FFFFFFFU) >> 20) - (120U << 3);
  return static_cast<uint8_t>((bits >> 24 & 0x80U) | code);
}

float encode_kv_row(DType dtype, std::span<const float> row, uint8_t* codes) {
  CHECK(dtype == DType::kI8 || dtype == DType::kF8E4M3);
  float largest = 0;
  bool finite = true;
  for (const float x : row) {
    finite = finite && std::isfinite(x);
    largest = std::max(largest, std::fabs(x));
  }
  std::fill_n(codes, row.size(), uint8_t{0});
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  const float scale = largest / (dtype == DType::kI8 ? 127.0F : 448.0F);
  const float inverse = 1.0F / scale;
  if (!std::isfinite(inverse)) return 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const float scaled = row[i] * inverse;
    codes[i] = dtype == DType::kI8
                   ? static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(scaled)))
                   : float_to_e4m3(scaled);
  }
  return scale;
}

float kv_code_value(DType dtype, uint8_t code) {
  CHECK(dtype == DType::kI8 || dtype == DType::kF8E4M3);
  return dtype == DType::kI8 ? static_cast<float>(static_cast<int8_t>(code)) : e4m3_to_float(code);
}

}  // namespace sluice
