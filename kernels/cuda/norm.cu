// SPDX-License-Identifier: Apache-2.0
// kernels/norm.h. One block a row (or a warp a head), whose 16 lanes' sums are the definition's
// chains.
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

// By lanes 0-15 of a warp; lane 0-15 get 1 / sqrt(mean(x^2) + eps).
__device__ __forceinline__ float inverse_rms(const float* x, int32_t n, float eps, int lane) {
  constexpr uint32_t kHalfWarp = 0x0000FFFFU;
  float sum = 0;
  for (int32_t i = lane; i < n; i += 16) sum = __fmaf_rn(x[i], x[i], sum);
  for (int half = 8; half >= 1; half /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kHalfWarp, sum, half));
  }
  const float mean = __fdiv_rn(sum, __int2float_rn(n));
  return __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(mean, eps)));
}

__global__ void __launch_bounds__(kRowThreads, 1)
    rms_norm_kernel(const __grid_constant__ RmsNormArgs args) {
  GPU_DYN_SHARED_ARRAY(float, staged);
  GPU_SHARED(float, factor, 1);
  const int64_t row = blockIdx.x;
  const int32_t n = args.out.k;
  const float* const x = args.x + row * args.x_stride;
  const int thread = static_cast<int>(threadIdx.x);
  for (int32_t i = thread; i < n; i += kRowThreads) staged[i] = x[i];
  __syncthreads();
  if (thread < 16) {
    const float r = inverse_rms(staged, n, args.eps, thread);
    if (thread == 0) factor[0] = r;
  }
  __syncthreads();
  const float r = factor[0];
  write_row(
      args.out, row, [&](int32_t i) { return __fmul_rn(__fmul_rn(staged[i], r), args.weight[i]); });
}

constexpr int kHeadsPerBlock = 4;  // a warp each

__global__ void __launch_bounds__(32 * kHeadsPerBlock, 1)
    head_norm_kernel(const __grid_constant__ HeadNormArgs args) {
  const int64_t index = int64_t{blockIdx.x} * kHeadsPerBlock + threadIdx.x / 32;
  if (index >= int64_t{args.num_rows} * args.num_heads) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  float* const x =
      args.x + index / args.num_heads * args.x_stride + index % args.num_heads * args.n;
  GPU_SHARED(float, factors, kHeadsPerBlock);
  float& factor = factors[threadIdx.x / 32];
  if (lane < 16) {
    const float r = inverse_rms(x, args.n, args.eps, lane);
    if (lane == 0) factor = r;
  }
  __syncwarp();
  const float r = factor;
  for (int32_t i = lane; i < args.n; i += 32) x[i] = __fmul_rn(__fmul_rn(x[i], r), args.weight[i]);
}

}  // namespace

void launch_rms_norm(Stream stream, const RmsNormArgs& args) {
  gpu::launch(stream,
              {.blocks_x = args.out.num_rows,
               .threads = kRowThreads,
               .shared_bytes = int64_t{args.out.k} * int64_t{sizeof(float)}},
              rms_norm_kernel,
              args);
}

void launch_head_norm(Stream stream, const HeadNormArgs& args) {
  const int64_t heads = int64_t{args.num_rows} * args.num_heads;
  gpu::launch(stream,
              {.blocks_x = ceil_div(heads, kHeadsPerBlock), .threads = 32 * kHeadsPerBlock},
              head_norm_kernel,
              args);
}

}  // namespace sluice::kernels::cuda
