// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rows/math64.h"

#include <bit>
#include <cstdint>

namespace sluice::kernels::cpu {
namespace {

constexpr double kRoundMagic = 0x1.8p52;  // adding and subtracting it rounds to the nearest integer

// Returns sum_{i < N} coeffs[i] * x^i by Horner's rule.
template <int N>
double horner(const double (&coeffs)[N], double x) {
  double value = coeffs[N - 1];
  for (int i = N - 2; i >= 0; --i) value = value * x + coeffs[i];
  return value;
}

}  // namespace

double log2_f64(double x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log(m) = 2 atanh(s), s = (m - 1) / (m + 1).
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int64_t exponent = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  constexpr double kAtanh[] = {1.0 / 3,
                               1.0 / 5,
                               1.0 / 7,
                               1.0 / 9,
                               1.0 / 11,
                               1.0 / 13,
                               1.0 / 15,
                               1.0 / 17,
                               1.0 / 19,
                               1.0 / 21};
  const double tail = s * z * horner(kAtanh, z);
  // 2 / ln 2 = kHi + kLo, kHi short enough that the leading product loses little.
  constexpr double kHi = 0x1.715476p+1;
  constexpr double kLo = 0x1.4ae0bf85ddf44p-25;
  const double fraction = s * kHi + (s * kLo + tail * (kHi + kLo));
  return static_cast<double>(exponent) + fraction;
}

double exp2_f64(double x) {
  const double n = (x + kRoundMagic) - kRoundMagic;
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  const double r = (x - n) * kLn2;  // x - n is exact
  constexpr double kExp[] = {1.0,
                             1.0,
                             1.0 / 2,
                             1.0 / 6,
                             1.0 / 24,
                             1.0 / 120,
                             1.0 / 720,
                             1.0 / 5040,
                             1.0 / 40320,
                             1.0 / 362880,
                             1.0 / 3628800,
                             1.0 / 39916800,
                             1.0 / 479001600,
                             1.0 / 6227020800,
                             1.0 / 87178291200};
  const auto exponent = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023);
  return horner(kExp, r) * std::bit_cast<double>(exponent << 52);
}

SinCos sincos_f64(double x) {
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kPart1 = 0x1.921fb544p+0;
  constexpr double kPart2 = 0x1.0b4611a6p-34;
  constexpr double kPart3 = 0x1.3198a2e037073p-69;
  const double n = (x * kTwoOverPi + kRoundMagic) - kRoundMagic;
  const double head = x - n * kPart1;  // exact
  const double mid = n * kPart2;       // exact
  const double high = head - mid;
  // The low part: the rounding error of the subtraction above, and the third part.
  const double low = ((head - high) - mid) - n * kPart3;
  const double r = high + low;
  const double r_low = (high - r) + low;

  constexpr double kSin[] = {-1.0 / 6,
                             1.0 / 120,
                             -1.0 / 5040,
                             1.0 / 362880,
                             -1.0 / 39916800,
                             1.0 / 6227020800,
                             -1.0 / 1307674368000,
                             1.0 / 355687428096000};
  constexpr double kCos[] = {1.0 / 24,
                             -1.0 / 720,
                             1.0 / 40320,
                             -1.0 / 3628800,
                             1.0 / 479001600,
                             -1.0 / 87178291200,
                             1.0 / 20922789888000,
                             -1.0 / 6402373705728000};
  const double z = r * r;
  const double half_z = 0.5 * z;
  const double sin_r = r + (r * z * horner(kSin, z) + r_low);
  const double one_minus = 1.0 - half_z;
  const double cos_r =
      one_minus + (((1.0 - one_minus) - half_z) + (z * z * horner(kCos, z) - r * r_low));
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {sin_r, cos_r};
    case 1:
      return {cos_r, -sin_r};
    case 2:
      return {-sin_r, -cos_r};
    default:
      return {-cos_r, sin_r};
  }
}

}  // namespace sluice::kernels::cpu
