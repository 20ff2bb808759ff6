// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensor_map.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>

#include "engine/core/status.h"

namespace sluice::gpu {
namespace {

CUtensorMapSwizzle driver_swizzle(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case Swizzle::k32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case Swizzle::k64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case Swizzle::k128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  SLUICE_UNREACHABLE("swizzle");
}

// libcuda is not linked, so that one binary also starts without a driver.
using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSince = 12000;  // the version of CUDA that has the function
  CHECK_EQ(cudaGetDriverEntryPointByVersion(
               "cuTensorMapEncodeTiled", &function, kSince, cudaEnableDefault, &found),
           cudaSuccess);
  CHECK_EQ(found, cudaDriverEntryPointSuccess);
  return reinterpret_cast<Encode>(function);
}

}  // namespace

TensorMap make_tensor_map(const TensorMapShape& shape) {
  static const Encode encode = find_encode();
  cuuint64_t sizes[4];
  cuuint64_t strides[3];
  cuuint32_t box[4];
  cuuint32_t steps[4];
  for (int i = 0; i < shape.rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(shape.sizes[i]);
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(shape.strides[i]);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    steps[i] = 1;
  }
  CUtensorMap map;
  CHECK_EQ(encode(&map,
                  shape.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                           : CU_TENSOR_MAP_DATA_TYPE_UINT8,
                  static_cast<cuuint32_t>(shape.rank),
                  const_cast<void*>(shape.data),
                  sizes,
                  strides,
                  box,
                  steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  driver_swizzle(shape.swizzle),
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
           CUDA_SUCCESS);
  TensorMap result;
  static_assert(sizeof(result) == sizeof(map));
  std::memcpy(&result, &map, sizeof(result));
  return result;
}

}  // namespace sluice::gpu
