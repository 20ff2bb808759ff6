// SPDX-License-Identifier: Apache-2.0
// Weights as floats, out of the layouts of quant/repack.h. No GPU has run it yet.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/narrow.h"
#include "quant/repack.h"

namespace sluice::kernels::cuda {

// Column i of a matrix's row; `scale` is kInt8Channel's.
template <WeightFormat kFormat>
__device__ __forceinline__ float weight_at(const std::byte* row, int32_t i, float scale) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return reinterpret_cast<const float*>(row)[i];
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return from_half(reinterpret_cast<const uint16_t*>(row)[i]);
  } else if constexpr (kFormat == WeightFormat::kBF16) {
    return from_bf16(reinterpret_cast<const uint16_t*>(row)[i]);
  } else {
    return __fmaf_rn(__int2float_rn(reinterpret_cast<const int8_t*>(row)[i]), scale, 0.0F);
  }
}

}  // namespace sluice::kernels::cuda
