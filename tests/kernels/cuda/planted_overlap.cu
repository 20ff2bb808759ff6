// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {
namespace {

using Shape = OverlapShape;
namespace ptx = gpu::ptx;

__global__ void __launch_bounds__(Shape::kThreads, 1)
    double_kernel(const float* x, float* doubled) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto i = static_cast<int>(blockIdx.x * Shape::kThreads + threadIdx.x);
  if (i < Shape::kN) doubled[i] = __fadd_rn(x[i], x[i]);
}

// Multiplies weights by the previous launch's output, in blocks that may start before it ends.
template <OverlapBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    weigh_kernel(const float* weight, const float* doubled, float* out) {
  GPU_SHARED(float4, staged, Shape::kThreads / 4);
  const auto thread = static_cast<int>(threadIdx.x);
  const auto first = static_cast<int>(blockIdx.x * Shape::kThreads);
  const int i = first + thread;
  const bool inside = i < Shape::kN;
  const float w = inside ? weight[i] : 0.0F;
  const auto copy = [&] {
    const int at = first + 4 * thread;
    if (thread < Shape::kThreads / 4 && at < Shape::kN) {
      ptx::cp_async_16(&staged[thread], doubled + at, 16);
    }
    ptx::cp_async_commit();
  };
  float early = 0;
  if (kBug == OverlapBug::kReadsBeforeTheWait && inside) early = doubled[i];
  if (kBug == OverlapBug::kWritesBeforeTheWait && inside) out[i] = w;
  if (kBug == OverlapBug::kCopiesBeforeTheWait) copy();
  if (kBug == OverlapBug::kLeavesWithoutTheWait && !inside) return;
  if (kBug != OverlapBug::kNoWait) ptx::wait_for_launches();
  if (kBug != OverlapBug::kCopiesBeforeTheWait) copy();
  ptx::cp_async_wait<0>();
  __syncthreads();
  if (!inside) return;
  const float x = reinterpret_cast<const float*>(staged)[thread];
  out[i] = __fmul_rn(w, kBug == OverlapBug::kReadsBeforeTheWait ? early : x);
}

}  // namespace

std::vector<float> run_overlap(OverlapBug bug,
                               const std::vector<float>& x,
                               const std::vector<float>& weight) {
  std::vector<float> doubled(Shape::kN);
  std::vector<float> out(Shape::kN);
  const gpu::LaunchShape front{.blocks_x = Shape::kBlocks, .threads = Shape::kThreads};
  gpu::LaunchShape behind = front;
  behind.overlaps = true;
  gpu::launch(nullptr, front, double_kernel, x.data(), doubled.data());
  with_bug<OverlapBug::kLeavesWithoutTheWait>(bug, [&]<OverlapBug kBug>() {
    gpu::launch(nullptr, behind, weigh_kernel<kBug>, weight.data(), doubled.data(), out.data());
  });
  return out;
}

}  // namespace sluice::kernels::test
