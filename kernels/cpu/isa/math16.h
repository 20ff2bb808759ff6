// SPDX-License-Identifier: Apache-2.0
// exp, log, tanh and gelu on 16 lanes: fixed polynomials with every fma written out, the same bits
// in each instruction set; tests/kernels/math_test.cpp measures errors. For files that may include
// vec16.h.
#pragma once

#include "kernels/cpu/isa/vec16.h"
#include "kernels/math_constants.h"

// Scalar functions are not inlined: beside 16 lanes a call costs little, inlining costs compile
// time.
#if defined(SLUICE_ISA_SCALAR)
#define SLUICE_MATH [[gnu::noinline, maybe_unused]] static
#else
#define SLUICE_MATH SLUICE_INLINE
#endif

namespace sluice::kernels::cpu::SLUICE_ISA {

alignas(64) constexpr int32_t kLaneIds[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Error below 1.1 ulp on [-87.3, 88.37]; exactly 0 below -87.3 (so never denormal), exactly 1 at 0,
// exp(88.37) above 88.37. NaN gives NaN, also with low bits set, as on a GPU: these bits, shifted
// into the exponent, would make it a number.
SLUICE_MATH V16 exp(V16 x) {
  const V16 magic = broadcast(kRoundMagic);
  const V16 y = min(broadcast(kExpTop), x);
  const V16 shifted = fma(y, broadcast(kLog2E), magic);
  const V16 n = sub(shifted, magic);  // round(y / ln 2), also in the low bits of `shifted`
  V16 r = fma(n, broadcast(-kLn2Hi), y);
  r = fma(n, broadcast(-kLn2Lo), r);
  V16 p = broadcast(kExp6);
  p = fma(p, r, broadcast(kExp5));
  p = fma(p, r, broadcast(kExp4));
  p = fma(p, r, broadcast(kExp3));
  p = fma(p, r, broadcast(kExp2));
  p = fma(p, r, broadcast(1.0F));
  p = fma(p, r, broadcast(1.0F));
  const V16 scaled = float_of_bits(add(bits_of(p), shift_left(bits_of(shifted), 23)));
  const V16 otherwise = max(zero(), x);
  return select(less(broadcast(kExpUnder), x), scaled, otherwise);
}

// log(1 + f) + e * ln 2, f in [sqrt(1/2) - 1, sqrt(2) - 1], e integers.
SLUICE_MATH V16 log_of_parts(V16 f, V16 e) {
  V16 p = broadcast(kLog10);
  p = fma(p, f, broadcast(kLog9));
  p = fma(p, f, broadcast(kLog8));
  p = fma(p, f, broadcast(kLog7));
  p = fma(p, f, broadcast(kLog6));
  p = fma(p, f, broadcast(kLog5));
  p = fma(p, f, broadcast(kLog4));
  p = fma(p, f, broadcast(kLog3));
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

// Splits x = (1 + f) * 2^e.
SLUICE_INLINE LogParts split_for_log(V16 x) {
  const I16 bits = bits_of(x);
  const I16 e = shift_right_arithmetic(sub(bits, broadcast(int32_t{0x3F3504F3})), 23);
  const V16 m = float_of_bits(sub(bits, shift_left(e, 23)));
  return {sub(m, broadcast(1.0F)), to_float(e)};
}

// x positive, normal and finite; error below 1.5 ulp.
SLUICE_INLINE V16 log(V16 x) {
  const LogParts parts = split_for_log(x);
  return log_of_parts(parts.f, parts.e);
}

// Error below 3 ulp; 1 for large x, NaN for NaN.
SLUICE_MATH V16 tanh(V16 x) {
  const V16 a = abs(x);
  const V16 z = mul(a, a);
  V16 p = broadcast(kTanh11);
  p = fma(p, z, broadcast(kTanh9));
  p = fma(p, z, broadcast(kTanh7));
  p = fma(p, z, broadcast(kTanh5));
  p = fma(p, z, broadcast(kTanh3));
  const V16 small = fma(mul(z, a), p, a);
  const V16 one = broadcast(1.0F);
  const V16 t = exp(mul(a, broadcast(-2.0F)));
  const V16 large = div(sub(one, t), add(one, t));
  const V16 magnitude = select(less(a, broadcast(kTanhSmall)), small, large);
  const I16 sign = bit_and(bits_of(x), broadcast(INT32_MIN));
  return float_of_bits(bit_or(bits_of(magnitude), sign));
}

// Returns x / 2 * (1 + erf(x / sqrt(2))), the Gaussian error unit: with h half of
// erfc(|x| / sqrt(2)), x * h below 0 and x * (1 - h) above. Error below 2e-7 * max(1, |x|).
SLUICE_MATH V16 gelu(V16 x) {
  const V16 one = broadcast(1.0F);
  const V16 a = mul(abs(x), broadcast(kSqrtHalf));
  const V16 z = mul(a, a);
  V16 p = broadcast(kErf13);
  p = fma(p, z, broadcast(kErf11));
  p = fma(p, z, broadcast(kErf9));
  p = fma(p, z, broadcast(kErf7));
  p = fma(p, z, broadcast(kErf5));
  p = fma(p, z, broadcast(kErf3));
  p = fma(p, z, broadcast(kErf1));
  const V16 near = sub(one, mul(a, p));
  const V16 t = div(one, fma(a, broadcast(kErfcSlope), one));
  V16 q = broadcast(kErfc7);
  q = fma(q, t, broadcast(kErfc6));
  q = fma(q, t, broadcast(kErfc5));
  q = fma(q, t, broadcast(kErfc4));
  q = fma(q, t, broadcast(kErfc3));
  q = fma(q, t, broadcast(kErfc2));
  q = fma(q, t, broadcast(kErfc1));
  q = fma(q, t, broadcast(kErfc0));
  const V16 far = mul(exp(sub(zero(), z)), q);
  const V16 half = mul(broadcast(0.5F), select(less(a, broadcast(kErfSmall)), near, far));
  return mul(x, select(less(x, zero()), half, sub(one, half)));
}

// Returns x / (1 + exp(-x)).
SLUICE_INLINE V16 silu(V16 x) { return div(x, add(broadcast(1.0F), exp(sub(zero(), x)))); }

}  // namespace sluice::kernels::cpu::SLUICE_ISA
