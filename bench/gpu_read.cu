// SPDX-License-Identifier: Apache-2.0
// Reads a buffer as fast as a kernel can: the probe behind GpuRig::probe_read.
#include "bench/gpu_read.h"

#include "kernels/cuda/gpu.h"

namespace sluice::bench {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;  // loads in flight per thread

__global__ void __launch_bounds__(kThreads, 1)
    read_kernel(const uint4* data, int64_t count, uint32_t* out) {
  uint32_t all = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step * kLoads) {
    uint4 values[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int64_t at = i + j * step;
      values[j] = at < count ? data[at] : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) all |= values[j].x ^ values[j].y ^ values[j].z ^ values[j].w;
  }
  if (all == 0xFFFFFFFFU) *out = all;  // keeps the compiler from dropping the loads
}

}  // namespace

void launch_read(CUstream_st* stream, const void* data, int64_t bytes, int32_t blocks, void* out) {
  gpu::launch(stream,
              {.blocks_x = blocks, .threads = kThreads},
              read_kernel,
              static_cast<const uint4*>(data),
              bytes / static_cast<int64_t>(sizeof(uint4)),
              static_cast<uint32_t*>(out));
}

}  // namespace sluice::bench
