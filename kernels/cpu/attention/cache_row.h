// SPDX-License-Identifier: Apache-2.0
// Writes a row of floats into a plane of a cache whose rows lie in token order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/core/types.h"
#include "kernels/attention.h"
#include "quant/format.h"

namespace sluice::kernels::cpu {

struct RowPlane {
  std::byte* data;
  DType dtype;  // kF32, kF16 or kBF16
  int32_t block_size;
  int32_t width;
};

// Writes n elements of a cache's type, and zeros up to `width`.
inline void write_elements(const float* x, int32_t n, int64_t width, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    auto* const out = reinterpret_cast<float*>(to);
    std::copy_n(x, n, out);
    std::fill(out + n, out + width, 0.0F);
    return;
  }
  auto* const out = reinterpret_cast<uint16_t*>(to);
  const bool is_half = dtype == DType::kF16;
  for (int32_t i = 0; i < n; ++i) out[i] = is_half ? float_to_half(x[i]) : float_to_bf16(x[i]);
  std::fill(out + n, out + width, uint16_t{0});
}

inline void cache_row(const RowPlane& plane, int64_t slot, const float* x) {
  const int64_t width = cached_head_dim(plane.width);
  const int64_t block =
      slot / plane.block_size * kv_head_bytes(plane.dtype, plane.width, plane.block_size);
  const int64_t row = slot % plane.block_size * width;
  write_elements(x,
                 plane.width,
                 width,
                 plane.dtype,
                 plane.data + block + row * static_cast<int64_t>(dtype_bytes(plane.dtype)));
}

}  // namespace sluice::kernels::cpu
