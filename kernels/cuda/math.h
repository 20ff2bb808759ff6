// SPDX-License-Identifier: Apache-2.0
// exp, log, tanh and what gates make of them, by kernels/cpu/isa/math16.h for one lane: the same
// operations in the same order, so the same bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/math_constants.h"

namespace sluice::kernels::cuda {

// lower_of() and higher_of() give `b` where either number is NaN, so NaN for two, as on the CPU.
__device__ __forceinline__ float lower_of(float a, float b) { return a < b ? a : b; }

__device__ __forceinline__ float higher_of(float a, float b) { return a > b ? a : b; }

// Returns the higher of two numbers, or the number where one is NaN; of two zeros either. It is one
// instruction, higher_of is two.
__device__ __forceinline__ float top_of(float a, float b) { return fmaxf(a, b); }

// exp(x), given y, the lower of x and kExpTop: 2^n times a polynomial of what n leaves of y; 0
// below the bottom, NaN for NaN. It has no branch, so that the exponentials of a lane are
// interleaved.
__device__ __forceinline__ float exp_of_parts(float x, float y) {
  const float shifted = __fmaf_rn(y, kLog2E, kRoundMagic);
  const float n = __fsub_rn(shifted, kRoundMagic);
  float r = __fmaf_rn(n, -kLn2Hi, y);
  r = __fmaf_rn(n, -kLn2Lo, r);
  float p = kExp6;
  p = __fmaf_rn(p, r, kExp5);
  p = __fmaf_rn(p, r, kExp4);
  p = __fmaf_rn(p, r, kExp3);
  p = __fmaf_rn(p, r, kExp2);
  p = __fmaf_rn(p, r, 1.0F);
  p = __fmaf_rn(p, r, 1.0F);
  const uint32_t exponent = static_cast<uint32_t>(__float_as_int(shifted)) << 23;
  const uint32_t scaled = static_cast<uint32_t>(__float_as_int(p)) + exponent;
  const float otherwise = higher_of(0.0F, x);
  return x >= kExpBottom ? __int_as_float(static_cast<int32_t>(scaled)) : otherwise;
}

__device__ __forceinline__ float exp_of(float x) { return exp_of_parts(x, lower_of(kExpTop, x)); }

// exp_of(x) where x is at most 0 or NaN.
__device__ __forceinline__ float exp_of_difference(float x) { return exp_of_parts(x, x); }

// log(1 + f) + e * ln 2, f in [sqrt(1/2) - 1, sqrt(2) - 1], e an integer.
__device__ __forceinline__ float log_of_parts(float f, float e) {
  float p = kLog10;
  p = __fmaf_rn(p, f, kLog9);
  p = __fmaf_rn(p, f, kLog8);
  p = __fmaf_rn(p, f, kLog7);
  p = __fmaf_rn(p, f, kLog6);
  p = __fmaf_rn(p, f, kLog5);
  p = __fmaf_rn(p, f, kLog4);
  p = __fmaf_rn(p, f, kLog3);
  const float z = __fmul_rn(f, f);
  float tail = __fmul_rn(__fmul_rn(z, f), p);
  tail = __fmaf_rn(e, kLn2Lo, tail);
  tail = __fmaf_rn(-0.5F, z, tail);
  return __fmaf_rn(e, kLn2Hi, __fadd_rn(f, tail));
}

struct LogParts {
  float f;
  float e;
};

// Splits x = (1 + f) * 2^e.
__device__ __forceinline__ LogParts split_for_log(float x) {
  const int32_t bits = __float_as_int(x);
  const int32_t e = (bits - 0x3F3504F3) >> 23;
  const uint32_t mantissa = static_cast<uint32_t>(bits) - (static_cast<uint32_t>(e) << 23);
  const float m = __int_as_float(static_cast<int32_t>(mantissa));
  return {__fsub_rn(m, 1.0F), __int2float_rn(e)};
}

// x must be positive, normal and finite.
__device__ __forceinline__ float log_of(float x) {
  const LogParts parts = split_for_log(x);
  return log_of_parts(parts.f, parts.e);
}

__device__ __forceinline__ float tanh_of(float x) {
  const int32_t bits = __float_as_int(x);
  const float a = __int_as_float(bits & INT32_MAX);
  const float z = __fmul_rn(a, a);
  float p = kTanh11;
  p = __fmaf_rn(p, z, kTanh9);
  p = __fmaf_rn(p, z, kTanh7);
  p = __fmaf_rn(p, z, kTanh5);
  p = __fmaf_rn(p, z, kTanh3);
  const float small = __fmaf_rn(__fmul_rn(z, a), p, a);
  const float t = exp_of(__fmul_rn(a, -2.0F));
  const float large = __fdiv_rn(__fsub_rn(1.0F, t), __fadd_rn(1.0F, t));
  const float magnitude = a < kTanhSmall ? small : large;
  return __int_as_float(__float_as_int(magnitude) | (bits & INT32_MIN));
}

__device__ __forceinline__ float gelu_of(float x) {
  const float a = __fmul_rn(__int_as_float(__float_as_int(x) & INT32_MAX), kSqrtHalf);
  const float z = __fmul_rn(a, a);
  float p = kErf13;
  p = __fmaf_rn(p, z, kErf11);
  p = __fmaf_rn(p, z, kErf9);
  p = __fmaf_rn(p, z, kErf7);
  p = __fmaf_rn(p, z, kErf5);
  p = __fmaf_rn(p, z, kErf3);
  p = __fmaf_rn(p, z, kErf1);
  const float near = __fsub_rn(1.0F, __fmul_rn(a, p));
  const float t = __fdiv_rn(1.0F, __fmaf_rn(a, kErfcSlope, 1.0F));
  float q = kErfc7;
  q = __fmaf_rn(q, t, kErfc6);
  q = __fmaf_rn(q, t, kErfc5);
  q = __fmaf_rn(q, t, kErfc4);
  q = __fmaf_rn(q, t, kErfc3);
  q = __fmaf_rn(q, t, kErfc2);
  q = __fmaf_rn(q, t, kErfc1);
  q = __fmaf_rn(q, t, kErfc0);
  const float far = __fmul_rn(exp_of(__fsub_rn(0.0F, z)), q);
  const float half = __fmul_rn(0.5F, a < kErfSmall ? near : far);
  return __fmul_rn(x, x < 0 ? half : __fsub_rn(1.0F, half));
}

__device__ __forceinline__ float sigmoid_of(float x) {
  return __fdiv_rn(1.0F, __fadd_rn(1.0F, exp_of(__fsub_rn(0.0F, x))));
}

__device__ __forceinline__ float silu_of(float x) {
  return __fdiv_rn(x, __fadd_rn(1.0F, exp_of(__fsub_rn(0.0F, x))));
}

}  // namespace sluice::kernels::cuda
