// SPDX-License-Identifier: Apache-2.0
// exp, log and tanh on 16 lanes: fixed polynomials with every fma written out, the same bits in each
// instruction set. Coefficients are minimax fits (Remez in 40 digits) rounded to float. Errors are
// measured in tests/kernels/math_test.cpp. Included where vec16.h is.
#pragma once

#include "kernels/cpu/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr float kLn2Hi = 0x1.62ep-1F;  // 12 bits: its product with an exponent is exact
inline constexpr float kLn2Lo = 0x1.0bfbe8p-15F;

// Below 1.1 ulp on [-87.3, 88.37]; exactly 0 below -87.3 (so never denormal), exactly 1 at 0,
// exp(88.37) above 88.37. NaN gives NaN.
SLUICE_INLINE V16 exp(V16 x) {
  const V16 magic = broadcast(0x1.8p23F);
  const V16 y = min(broadcast(88.37F), x);
  const V16 shifted = fma(y, broadcast(0x1.715476p+0F), magic);
  const V16 n = sub(shifted, magic);  // round(y / ln 2), also in the low bits of `shifted`
  V16 r = fma(n, broadcast(-kLn2Hi), y);
  r = fma(n, broadcast(-kLn2Lo), r);
  V16 p = broadcast(0x1.6a2350p-10F);
  p = fma(p, r, broadcast(0x1.123a6cp-7F));
  p = fma(p, r, broadcast(0x1.5558f4p-5F));
  p = fma(p, r, broadcast(0x1.555490p-3F));
  p = fma(p, r, broadcast(0x1.fffffcp-2F));
  p = fma(p, r, broadcast(1.0F));
  p = fma(p, r, broadcast(1.0F));
  const V16 scaled = float_of_bits(add(bits_of(p), shift_left(bits_of(shifted), 23)));
  return select(less(x, broadcast(-87.3F)), zero(), scaled);
}

// log(1 + f) + e * ln 2, f in [sqrt(1/2) - 1, sqrt(2) - 1], e integers.
SLUICE_INLINE V16 log_of_parts(V16 f, V16 e) {
  V16 p = broadcast(-0x1.427aeep-4F);
  p = fma(p, f, broadcast(0x1.083266p-3F));
  p = fma(p, f, broadcast(-0x1.0cf286p-3F));
  p = fma(p, f, broadcast(0x1.2261cep-3F));
  p = fma(p, f, broadcast(-0x1.5475a4p-3F));
  p = fma(p, f, broadcast(0x1.99a60ep-3F));
  p = fma(p, f, broadcast(-0x1.00022ap-2F));
  p = fma(p, f, broadcast(0x1.55554ap-2F));
  const V16 z = mul(f, f);
  V16 tail = mul(mul(z, f), p);
  tail = fma(e, broadcast(kLn2Lo), tail);
  tail = fma(broadcast(-0.5F), z, tail);
  return fma(e, broadcast(kLn2Hi), add(f, tail));
}

struct LogParts {
  V16 f;
  V16 e;
};

// x = (1 + f) * 2^e.
SLUICE_INLINE LogParts split_for_log(V16 x) {
  const I16 bits = bits_of(x);
  const I16 e = shift_right_arithmetic(sub(bits, broadcast(int32_t{0x3F3504F3})), 23);
  const V16 m = float_of_bits(sub(bits, shift_left(e, 23)));
  return {sub(m, broadcast(1.0F)), to_float(e)};
}

// x positive, normal and finite. Below 1.5 ulp.
SLUICE_INLINE V16 log(V16 x) {
  const LogParts parts = split_for_log(x);
  return log_of_parts(parts.f, parts.e);
}

// Below 3 ulp; 1 for large x, NaN for NaN.
SLUICE_INLINE V16 tanh(V16 x) {
  const V16 a = abs(x);
  const V16 z = mul(a, a);
  V16 p = broadcast(-0x1.72fe7ep-8F);
  p = fma(p, z, broadcast(0x1.518bf0p-6F));
  p = fma(p, z, broadcast(-0x1.b82692p-5F));
  p = fma(p, z, broadcast(0x1.110692p-3F));
  p = fma(p, z, broadcast(-0x1.555530p-2F));
  const V16 small = fma(mul(z, a), p, a);
  const V16 one = broadcast(1.0F);
  const V16 t = exp(mul(a, broadcast(-2.0F)));
  const V16 large = div(sub(one, t), add(one, t));
  const V16 magnitude = select(less(a, broadcast(0.625F)), small, large);
  const I16 sign = bit_and(bits_of(x), broadcast(INT32_MIN));
  return float_of_bits(bit_or(bits_of(magnitude), sign));
}

// x / (1 + exp(-x)).
SLUICE_INLINE V16 silu(V16 x) {
  return div(x, add(broadcast(1.0F), exp(sub(zero(), x))));
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
