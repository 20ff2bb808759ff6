// SPDX-License-Identifier: Apache-2.0
// One plane of one layer, where operators read and write it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/kv_group.h"

namespace sluice {

// [num_blocks][shape.num_heads], each head's part of a block as kernels/attention.h says.
struct KvPlaneView {
  std::byte* data = nullptr;
  KvPlane shape;
  int32_t num_blocks = 0;
  int32_t block_size = 0;  // tokens of a block
};

}  // namespace sluice
