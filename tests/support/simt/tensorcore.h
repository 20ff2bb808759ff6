// SPDX-License-Identifier: Apache-2.0
// The arithmetic of tensor cores: products of narrow floats added to a 32-bit float. Hopper's
// matches GPUs' answers bit for bit (tests/golden/tensorcore: an H100 and an H200). Ampere's and
// Ada's follows publications and was not compared with such a GPU.
#pragma once

#include <cstdint>

namespace sluice::simt {

enum class Half : uint8_t { kBF16, kF16 };

// The number of products summed at once, and the bits after the point of their sum.
struct TensorCore {
  int products;
  int fraction;
};

inline constexpr TensorCore kHopperCore = {16, 25};
inline constexpr TensorCore kAmpereCore = {8, 24};  // Ada's as well

// Returns c + sum of a[i] * b[i] over 16 products, the core's number of them at a time, in order:
// the exact products and c are aligned to the largest exponent, cut to `fraction` bits after the
// point, added as integers, normalized and rounded toward zero. Zero products take no part. Any
// NaN, an infinity times 0, or infinities of both signs give the NaN 0x7FFFFFFF; overflow gives an
// infinity of its sign.
float tensor_core_step(
    Half type, const uint16_t* a, const uint16_t* b, float c, TensorCore core = kHopperCore);

// e4m3 has no infinity and one NaN a sign, 0x7F; e5m2 is the upper half of a 16-bit float.
enum class Float8 : uint8_t { kE4M3, kE5M2 };

// One step of 32 products by Hopper's wgmma: like tensor_core_step, all 32 at once with 13 bits
// after the point. The sum keeps as many bits of mantissa: the low 10 of the result are 0.
float wgmma_float8_step(Float8 a_type, const uint8_t* a, Float8 b_type, const uint8_t* b, float c);

// One step by mma.sync m16n8k32 on Hopper, another function: operands become 16-bit floats; the
// products of k % 4 in {0, 1} are summed from 0 by one step of kHopperCore, those of k % 4 in {2,
// 3} onto it by another, and c is added to the result by a float addition, to nearest.
float mma_float8_step(Float8 a_type, const uint8_t* a, Float8 b_type, const uint8_t* b, float c);

}  // namespace sluice::simt
