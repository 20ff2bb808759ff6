// SPDX-License-Identifier: Apache-2.0
// exp and tanh of kernels/cpu/math16.h for one lane: the same operations in the same order, so the
// same bits. No GPU has run it yet.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/math_constants.h"

namespace sluice::kernels::cuda {

// NaN gives NaN in both, and `b` where either is NaN, as on the CPU.
__device__ __forceinline__ float lower_of(float a, float b) { return a < b ? a : b; }

__device__ __forceinline__ float higher_of(float a, float b) { return a > b ? a : b; }

__device__ __forceinline__ float exp_of(float x) {
  const float y = lower_of(kExpTop, x);
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
  return x < kExpBottom ? 0.0F : __int_as_float(static_cast<int32_t>(scaled));
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

__device__ __forceinline__ float silu_of(float x) {
  return __fdiv_rn(x, __fadd_rn(1.0F, exp_of(__fsub_rn(0.0F, x))));
}

}  // namespace sluice::kernels::cuda
