// SPDX-License-Identifier: Apache-2.0
// The arithmetic of Hopper's tensor cores, bit for bit where GPUs' answers were recorded
// (tests/golden/tensorcore): one step of 16 products of 16-bit floats added to a 32-bit one.
#pragma once

#include <cstdint>

namespace sluice::simt {

enum class Half : uint8_t { kBF16, kF16 };

// c + sum of a[i] * b[i] as one step: the exact products and c are aligned to the largest exponent,
// cut to 25 bits after the point, added as integers, normalized and rounded toward zero. Zero
// products take no part. Any NaN, an infinity times 0, or infinities of both signs give NaN; what
// is too large gives the largest float. These last two no recorded answer has shown.
float tensor_core_step(Half type, const uint16_t a[16], const uint16_t b[16], float c);

}  // namespace sluice::simt
