// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simt/tensorcore.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace sluice::simt {
namespace {

// value = (negative ? -1 : 1) * significand * 2^(exponent - point), significand below 2^(point +
// 1).
struct Parts {
  bool negative;
  bool special;  // infinite or NaN
  bool nan;
  int64_t significand;
  int exponent;
};

Parts split(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t mantissa = bits & ((1U << mantissa_bits) - 1);
  const auto exponent = static_cast<int>(bits >> mantissa_bits & ((1U << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  Parts parts{};
  parts.negative = (bits >> (exponent_bits + mantissa_bits) & 1U) != 0;
  parts.special = exponent == (1 << exponent_bits) - 1;
  parts.nan = parts.special && mantissa != 0;
  parts.significand = exponent == 0 ? mantissa : mantissa | 1U << mantissa_bits;
  parts.exponent = std::max(exponent, 1) - bias;
  return parts;
}

// Of a sum in units of 2^unit.
float round_toward_zero(int64_t sum, int unit) {
  if (sum == 0) return 0.0F;
  const bool negative = sum < 0;
  auto magnitude = static_cast<uint64_t>(negative ? -sum : sum);
  const int top = 63 - std::countl_zero(magnitude);
  // The lowest bit a float keeps: 23 below the first, or that of the subnormals.
  const int drop = std::max(top - 23, -149 - unit);
  if (drop >= 64) return negative ? -0.0F : 0.0F;
  if (drop > 0) magnitude = magnitude >> drop << drop;
  const float value = std::ldexp(static_cast<float>(magnitude), unit);  // exact, or infinite
  const float finite = std::isinf(value) ? std::numeric_limits<float>::max() : value;
  return negative ? -finite : finite;
}

float sum_at_once(
    Half type, const uint16_t* a, const uint16_t* b, float c, TensorCore core) {
  const int exponent_bits = type == Half::kBF16 ? 8 : 5;
  const int mantissa_bits = 15 - exponent_bits;

  struct Term {
    int64_t significand;  // with `point` bits after the point
    int point;
    int exponent;
    bool negative;
  };

  Term terms[17];
  int count = 0;
  bool nan = false;
  bool infinite[2] = {false, false};
  for (int i = 0; i < core.products; ++i) {
    const Parts x = split(a[i], exponent_bits, mantissa_bits);
    const Parts y = split(b[i], exponent_bits, mantissa_bits);
    const bool negative = x.negative != y.negative;
    if (x.special || y.special) {
      nan = nan || x.nan || y.nan || x.significand == 0 || y.significand == 0;
      infinite[negative ? 1 : 0] = true;
      continue;
    }
    if (x.significand == 0 || y.significand == 0) continue;
    terms[count++] = {
        x.significand * y.significand, 2 * mantissa_bits, x.exponent + y.exponent, negative};
  }
  const Parts base = split(std::bit_cast<uint32_t>(c), 8, 23);
  nan = nan || base.nan;
  if (base.special) infinite[base.negative ? 1 : 0] = true;
  if (nan || (infinite[0] && infinite[1])) return std::bit_cast<float>(0x7FFFFFFFU);
  if (infinite[0] || infinite[1]) {
    const float infinity = std::numeric_limits<float>::infinity();
    return infinite[1] ? -infinity : infinity;
  }
  if (base.significand != 0) terms[count++] = {base.significand, 23, base.exponent, base.negative};
  if (count == 0) return 0.0F;
  int top = terms[0].exponent;
  for (int i = 1; i < count; ++i) top = std::max(top, terms[i].exponent);
  int64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const Term& term = terms[i];
    const int left = core.fraction - term.point - (top - term.exponent);
    int64_t aligned = 0;
    if (left >= 0) {
      aligned = term.significand << left;
    } else if (left > -64) {
      aligned = term.significand >> -left;
    }
    sum += term.negative ? -aligned : aligned;
  }
  return round_toward_zero(sum, top - core.fraction);
}

}  // namespace

float tensor_core_step(
    Half type, const uint16_t* a, const uint16_t* b, float c, TensorCore core) {
  for (int i = 0; i < 16; i += core.products) c = sum_at_once(type, a + i, b + i, c, core);
  return c;
}

}  // namespace sluice::simt
