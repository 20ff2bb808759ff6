// SPDX-License-Identifier: Apache-2.0
// Floats to and from 16 and 8 bits, in integer steps: the bits of kernels/cpu/isa/vec16_scalar.h
// and kernels/cpu/rows/rows_impl.h on every device.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"

namespace sluice::kernels::cuda {

__device__ __forceinline__ uint32_t bits_of(float a) {
  return static_cast<uint32_t>(__float_as_int(a));
}

__device__ __forceinline__ float float_of(uint32_t bits) {
  return __int_as_float(static_cast<int32_t>(bits));
}

__device__ __forceinline__ float from_bf16(uint16_t code) { return float_of(uint32_t{code} << 16); }

// Widens exactly; a signalling NaN comes out quiet.
__device__ __forceinline__ float from_half(uint16_t code) {
  const uint32_t sign = (code & 0x8000U) << 16;
  const uint32_t exponent = (code >> 10) & 0x1FU;
  const uint32_t mantissa = code & 0x3FFU;
  if (exponent == 0) {
    const float magnitude = __fmul_rn(__int2float_rn(static_cast<int32_t>(mantissa)), 0x1p-24F);
    return float_of(bits_of(magnitude) | sign);
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return float_of(sign | 0x7F800000U | quiet | mantissa << 13);
  }
  return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Returns a code's value / 256, exactly.
__device__ __forceinline__ float e4m3_by_256(uint8_t code) {
  const float magnitude = __fmul_rn(float_of((code & 0x7FU) << 20), 0x1p112F);
  return float_of(bits_of(magnitude) | (code & 0x80U) << 24);
}

// Rounds to nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ uint16_t to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  const uint32_t rounded = bits + 0x7FFFU + (bits >> 16 & 1U);
  return static_cast<uint16_t>((nan ? bits | 0x00400000U : rounded) >> 16);
}

// Rounds to nearest, ties to even.
__device__ __forceinline__ uint16_t to_half(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<uint16_t>(sign | 0x7E00U | (magnitude >> 13 & 0x1FFU));
  }
  if (magnitude >= 0x47800000U) return static_cast<uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 puts units of 2^-24 in the low bits
    const float shifted = __fadd_rn(float_of(magnitude), 0.5F);
    return static_cast<uint16_t>(sign | (bits_of(shifted) - 0x3F000000U));
  }
  const uint32_t odd = magnitude >> 13 & 1U;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13));
}

// Rounds to nearest, ties to even; magnitudes must round to at most 448.
__device__ __forceinline__ uint8_t to_e4m3(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  const uint32_t sign = bits >> 24 & 0x80U;
  if (float_of(magnitude) < 0x1p-6F) {  // adding 2^14 leaves multiples of 2^-9 in the low bits
    const float shifted = __fadd_rn(float_of(magnitude), 16384.0F);
    return static_cast<uint8_t>(sign | (bits_of(shifted) - 0x46800000U));
  }
  const uint32_t odd = magnitude >> 20 & 1U;
  return static_cast<uint8_t>(sign | ((magnitude - 0x3C000000U + 0x7FFFFU + odd) >> 20));
}

}  // namespace sluice::kernels::cuda
