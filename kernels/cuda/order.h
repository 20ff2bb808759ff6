// SPDX-License-Identifier: Apache-2.0
// The order (value descending, index ascending) as whole numbers.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {

// The greatest number comes first; 0 comes after all values. Both zeros are one value.
__device__ __forceinline__ uint64_t rank_of(float value, int32_t index) {
  const uint32_t bits = bits_of(__fadd_rn(value, 0.0F));
  const uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(~index);
}

__device__ __forceinline__ int32_t index_of(uint64_t rank) {
  return static_cast<int32_t>(~static_cast<uint32_t>(rank));
}

__device__ __forceinline__ uint64_t higher_rank(uint64_t a, uint64_t b) { return a > b ? a : b; }

__device__ __forceinline__ uint64_t highest_of_warp(uint64_t rank) {
  const auto high = static_cast<uint32_t>(rank >> 32);
  const uint32_t highest = __reduce_max_sync(kAllLanes, high);
  const uint32_t low = high == highest ? static_cast<uint32_t>(rank) : 0U;
  return uint64_t{highest} << 32 | __reduce_max_sync(kAllLanes, low);
}

}  // namespace sluice::kernels::cuda
