// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {
namespace {

using Shape = HistogramShape;

// Fills a digit's bins by all threads; one finds the first bin that reaches the wanted sum.
template <HistogramBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    select_kernel(const uint32_t* values, float* out) {
  GPU_SHARED(uint32_t, bins, Shape::kBins);
  GPU_SHARED(uint32_t, found, 1);
  const auto thread = static_cast<int>(threadIdx.x);
  uint32_t prefix = 0;
  for (int shift = 8; shift >= 0; shift -= 4) {
    if (thread < Shape::kBins) bins[thread] = 0;
    if (kBug != HistogramBug::kNoBarrierAfterClear) __syncthreads();
    for (int i = thread; i < Shape::kValues; i += Shape::kThreads) {
      if (values[i] >> (shift + 4) != prefix) continue;
      const uint32_t digit = values[i] >> shift & (Shape::kBins - 1);
      if (kBug == HistogramBug::kPlainAdd) {
        bins[digit] += 1;
      } else {
        gpu::shared_add(&bins[digit], 1U);
      }
    }
    if (kBug != HistogramBug::kNoBarrierBeforeRead) __syncthreads();
    if (thread == 0) {
      uint32_t fullest = 0;
      for (uint32_t i = 1; i < Shape::kBins; ++i) fullest = bins[i] > bins[fullest] ? i : fullest;
      found[0] = fullest;
    }
    if (kBug != HistogramBug::kNoBarrierBeforeFound) __syncthreads();
    prefix = prefix << 4 | found[0];
  }
  if (thread == 0) out[0] = static_cast<float>(prefix);
}

}  // namespace

float run_histogram(HistogramBug bug, const std::vector<uint32_t>& values) {
  float out = -1;
  with_bug<HistogramBug::kNoBarrierBeforeFound>(bug, [&]<HistogramBug kBug>() {
    gpu::launch(nullptr, {.threads = Shape::kThreads}, select_kernel<kBug>, values.data(), &out);
  });
  return out;
}

}  // namespace sluice::kernels::test
