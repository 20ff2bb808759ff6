// SPDX-License-Identifier: Apache-2.0
// A kernel that waits: what the end of a link may have to wait for.
#include "bench/gpu_wait.h"

#include "kernels/cuda/gpu.h"

namespace sluice::bench {
namespace {

constexpr int64_t kMostClocks = int64_t{1} << 33;

__global__ void __launch_bounds__(1, 1) wait_kernel(const volatile uint32_t* word) {
  const int64_t begin = clock64();
  while (*word == 0 && clock64() - begin < kMostClocks) {
  }
}

}  // namespace

void launch_wait(CUstream_st* stream, const uint32_t* word) {
  gpu::launch(stream, {.threads = 1}, wait_kernel, static_cast<const volatile uint32_t*>(word));
}

}  // namespace sluice::bench
