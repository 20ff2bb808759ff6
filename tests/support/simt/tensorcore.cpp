// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simt/tensorcore.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace sluice::simt {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kNan = 0x7FFFFFFF;

// The layout of a float's bits; whether the highest exponent is only for infinities and NaN.
struct Layout {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity = true;
};

constexpr Layout kSingle = {8, 23};
constexpr Layout kF16Layout = {5, 10};
constexpr Layout kBf16Layout = {8, 7};
constexpr Layout kE4M3Layout = {4, 3, false};
constexpr Layout kE5M2Layout = {5, 2};

// value = (negative ? -1 : 1) * significand * 2^(exponent - point), significand below 2^(point +
// 1).
struct Parts {
  bool negative;
  bool special;  // infinite or NaN
  bool nan;
  int64_t significand;
  int exponent;
  int point;
};

Parts split(uint32_t bits, Layout layout) {
  const uint32_t most = (1U << layout.mantissa_bits) - 1;  // largest mantissa
  const uint32_t mantissa = bits & most;
  const auto exponent =
      static_cast<int>(bits >> layout.mantissa_bits & ((1U << layout.exponent_bits) - 1));
  const int bias = (1 << (layout.exponent_bits - 1)) - 1;
  const bool is_last = exponent == (1 << layout.exponent_bits) - 1;
  Parts parts{};
  parts.negative = (bits >> (layout.exponent_bits + layout.mantissa_bits) & 1U) != 0;
  parts.special = is_last && (layout.has_infinity || mantissa == most);
  parts.nan = parts.special && (!layout.has_infinity || mantissa != 0);
  parts.significand = exponent == 0 ? mantissa : mantissa | 1U << layout.mantissa_bits;
  parts.exponent = std::max(exponent, 1) - bias;
  parts.point = layout.mantissa_bits;
  return parts;
}

// Rounds a sum in units of 2^unit toward zero to `mantissa_bits` after its leading one.
float round_toward_zero(int64_t sum, int unit, int mantissa_bits) {
  if (sum == 0) return 0.0F;
  const bool negative = sum < 0;
  auto magnitude = static_cast<uint64_t>(negative ? -sum : sum);
  const int top = 63 - std::countl_zero(magnitude);
  // The lowest bit that is kept: `mantissa_bits` below the first, or the subnormals' lowest.
  const int drop = std::max(top - mantissa_bits, -149 - unit);
  if (drop >= 64) return negative ? -0.0F : 0.0F;
  if (drop > 0) magnitude = magnitude >> drop << drop;
  const float value = std::ldexp(static_cast<float>(magnitude), unit);  // exact, or infinite
  return negative ? -value : value;
}

// The terms of one sum: at most 32 products and c.
class Terms {
 public:
  void add_product(const Parts& x, const Parts& y) {
    const bool negative = x.negative != y.negative;
    if (x.special || y.special) {
      nan_ = nan_ || x.nan || y.nan || x.significand == 0 || y.significand == 0;
      infinite_[negative ? 1 : 0] = true;
      return;
    }
    add({.negative = negative,
         .special = false,
         .nan = false,
         .significand = x.significand * y.significand,
         .exponent = x.exponent + y.exponent,
         .point = x.point + y.point});
  }

  void add(const Parts& term) {
    nan_ = nan_ || term.nan;
    if (term.special) infinite_[term.negative ? 1 : 0] = true;
    if (!term.special && term.significand != 0) terms_[count_++] = term;
  }

  // Returns the terms' sum, aligned to the largest exponent with `fraction` bits after the point.
  [[nodiscard]] float sum(int fraction, int mantissa_bits) const {
    if (nan_ || (infinite_[0] && infinite_[1])) return std::bit_cast<float>(kNan);
    if (infinite_[0] || infinite_[1]) return infinite_[1] ? -kInfinity : kInfinity;
    if (count_ == 0) return 0.0F;
    int top = terms_[0].exponent;
    for (int i = 1; i < count_; ++i) top = std::max(top, terms_[i].exponent);
    int64_t sum = 0;
    for (int i = 0; i < count_; ++i) {
      const Parts& term = terms_[i];
      const int left = fraction - term.point - (top - term.exponent);
      int64_t aligned = 0;
      if (left >= 0) {
        aligned = term.significand << left;
      } else if (left > -64) {
        aligned = term.significand >> -left;
      }
      sum += term.negative ? -aligned : aligned;
    }
    return round_toward_zero(sum, top - fraction, mantissa_bits);
  }

 private:
  Parts terms_[33];
  int count_ = 0;
  bool nan_ = false;
  bool infinite_[2] = {false, false};
};

Layout layout_of(Float8 type) { return type == Float8::kE4M3 ? kE4M3Layout : kE5M2Layout; }

// Widens exactly: 16-bit floats have every value of both types.
uint16_t widened(Float8 type, uint8_t code) {
  if (type == Float8::kE5M2) return static_cast<uint16_t>(code << 8);
  const uint32_t sign = (code & 0x80U) << 8;
  const Parts parts = split(code, kE4M3Layout);
  if (parts.nan) return static_cast<uint16_t>(sign | 0x7FFFU);
  if (parts.significand == 0) return static_cast<uint16_t>(sign);
  const int shift = std::countl_zero(static_cast<uint32_t>(parts.significand)) - 28;
  const auto exponent = static_cast<uint32_t>(parts.exponent - shift + 15);
  const auto mantissa = static_cast<uint32_t>(parts.significand << shift) & 7U;
  return static_cast<uint16_t>(sign | exponent << 10 | mantissa << 7);
}

}  // namespace

float tensor_core_step(Half type, const uint16_t* a, const uint16_t* b, float c, TensorCore core) {
  const Layout layout = type == Half::kBF16 ? kBf16Layout : kF16Layout;
  for (int first = 0; first < 16; first += core.products) {
    Terms terms;
    for (int i = first; i < first + core.products; ++i) {
      terms.add_product(split(a[i], layout), split(b[i], layout));
    }
    terms.add(split(std::bit_cast<uint32_t>(c), kSingle));
    c = terms.sum(core.fraction, kSingle.mantissa_bits);
  }
  return c;
}

float wgmma_float8_step(Float8 a_type, const uint8_t* a, Float8 b_type, const uint8_t* b, float c) {
  constexpr int kBits = 13;
  Terms terms;
  for (int i = 0; i < 32; ++i) {
    terms.add_product(split(a[i], layout_of(a_type)), split(b[i], layout_of(b_type)));
  }
  terms.add(split(std::bit_cast<uint32_t>(c), kSingle));
  return terms.sum(kBits, kBits);
}

float mma_float8_step(Float8 a_type, const uint8_t* a, Float8 b_type, const uint8_t* b, float c) {
  float sum = 0;
  for (int pair = 0; pair < 4; pair += 2) {
    uint16_t x[16];
    uint16_t y[16];
    for (int i = 0; i < 16; ++i) {
      const int k = i / 2 * 4 + pair + i % 2;
      x[i] = widened(a_type, a[k]);
      y[i] = widened(b_type, b[k]);
    }
    sum = tensor_core_step(Half::kF16, x, y, sum);
  }
  const float result = sum + c;
  return result == result ? result : std::bit_cast<float>(kNan);
}

}  // namespace sluice::simt
