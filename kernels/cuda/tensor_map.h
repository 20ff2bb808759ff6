// SPDX-License-Identifier: Apache-2.0
// The copy engine's description of a tensor in global memory. The host builds it and passes it to
// kernels as a __grid_constant__ parameter.
#pragma once

#include <cstdint>

namespace sluice::gpu {

// How 16-byte pieces of a box are permuted in shared memory: within rows of this many bytes, by the
// row's number modulo 2, 4 or 8, so that a column of rows is read without bank conflicts.
enum class Swizzle : uint8_t { kNone, k32, k64, k128 };

struct TensorMapShape {
  const void* data = nullptr;  // 16-byte aligned
  int32_t element_bytes = 1;   // 1 or 2
  int32_t rank = 2;            // 2 to 4
  int64_t sizes[4] = {};       // elements, the innermost dimension first
  int64_t strides[4] = {};     // bytes from one index to the next; multiples of 16; [0] is not read
  int32_t box[4] = {};         // elements that one copy moves; box[0] fills the swizzle's row
  Swizzle swizzle = Swizzle::kNone;
};

struct alignas(64) TensorMap {
  uint64_t words[16];
};

// Elements outside of the tensor are copied as zeros. A shape that the engine refuses is our bug.
TensorMap make_tensor_map(const TensorMapShape& shape);

}  // namespace sluice::gpu
