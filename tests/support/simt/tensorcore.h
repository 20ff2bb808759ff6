// SPDX-License-Identifier: Apache-2.0
// The arithmetic of tensor cores: products of 16-bit floats added to a 32-bit one. Hopper's bit for
// bit where GPUs' answers were recorded (tests/golden/tensorcore); Ampere's and Ada's from what is
// published of them, which nothing here was compared with.
#pragma once

#include <cstdint>

namespace sluice::simt {

enum class Half : uint8_t { kBF16, kF16 };

// How many products are summed at once, and how many bits after the point their sum has.
struct TensorCore {
  int products;
  int fraction;
};

inline constexpr TensorCore kHopperCore = {16, 25};
inline constexpr TensorCore kAmpereCore = {8, 24};  // and Ada's

// c + sum of a[i] * b[i] over 16 products, the core's number of them at a time, in order: the exact
// products and c are aligned to the largest exponent, cut to `fraction` bits after the point, added
// as integers, normalized and rounded toward zero. Zero products take no part. Any NaN, an infinity
// times 0, or infinities of both signs give NaN; what is too large gives the largest float. These
// last two no recorded answer has shown.
float tensor_core_step(
    Half type, const uint16_t* a, const uint16_t* b, float c, TensorCore core = kHopperCore);

}  // namespace sluice::simt
