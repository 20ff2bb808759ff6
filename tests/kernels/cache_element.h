// SPDX-License-Identifier: Apache-2.0
// Elements of caches of floats, for tests that lay caches out themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/core/types.h"
#include "quant/format.h"

namespace sluice::kernels::test {

// Writes element `at` of a plane of kF32, kF16 or kBF16.
inline void write_element(std::byte* plane, int64_t at, DType dtype, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(plane + at * 4, &value, 4);
    return;
  }
  const uint16_t bits = dtype == DType::kF16 ? float_to_half(value) : float_to_bf16(value);
  std::memcpy(plane + at * 2, &bits, 2);
}

}  // namespace sluice::kernels::test
