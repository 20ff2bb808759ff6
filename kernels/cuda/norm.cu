// SPDX-License-Identifier: Apache-2.0
// The norms of kernels/norm.h: a block a row, or a warp a head where heads are short. A row has
// room in whole fours: memcheck saw the compiler read past the room for its values alone.
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_rows.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {

namespace ptx = gpu::ptx;

namespace {

constexpr int kMostThreads = 512;
constexpr int kManyThreads = 128;  // 8 blocks and more on an SM: some read while others add

// kHeld: the fours of weights that a thread reads ahead. With many rows other blocks hide a block's
// waits, with few its own threads do.
template <int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads, 1)
    rms_norm_kernel(const __grid_constant__ RmsNormArgs args) {
  GPU_DYN_SHARED_ARRAY(float, staged);
  const int64_t row = blockIdx.x;
  const int32_t n = args.out.k;
  const float* const x = args.x + row * args.x_stride;
  const bool wide = is_wide(x);
  const auto step = static_cast<int32_t>(4 * blockDim.x);
  ptx::start_next_launch();
  const NormWeights<kHeld> weights(args.weight, n);
  ptx::wait_for_launches();
#pragma unroll 4
  for (auto i = static_cast<int32_t>(4 * threadIdx.x); i < n; i += step) {
    store_four(staged, i, n, true, load_four(x, i, n, wide));
  }
  if (args.subtracts_mean) subtract_mean_of_block(staged, n);
  const float r = inverse_rms_of_block(staged, n, args.eps);
  write_normed(
      args.out, row, staged, r, weights, NormBias{.adds = args.subtracts_mean, .bias = args.bias});
}

constexpr int kHeadsPerBlock = 4;  // a warp each
constexpr int32_t kShortHead = 512;

// Norms a head by a warp, in shared memory, so that its lanes read ahead of the chains.
__global__ void __launch_bounds__(32 * kHeadsPerBlock, 1)
    head_norm_kernel(const __grid_constant__ HeadNormArgs args) {
  GPU_DYN_SHARED_ARRAY(float, staged);
  GPU_SHARED(float, factors, kHeadsPerBlock);
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const int64_t index = int64_t{blockIdx.x} * kHeadsPerBlock + warp;
  if (index >= int64_t{args.num_rows} * args.num_heads) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t first = index / args.num_heads * args.x_stride + index % args.num_heads * args.n;
  const float* const x = args.x + first;
  float* const out = (args.out == nullptr ? args.x : args.out) + first;
  float* const own = staged + int64_t{warp} * args.n;
#pragma unroll 4
  for (int32_t i = lane; i < args.n; i += 32) own[i] = x[i];
  __syncwarp();
  if (args.subtracts_mean) {
    if (lane < kNormLanes) {
      const float mean = mean_of(own, args.n, lane);
      if (lane == 0) factors[warp] = mean;
    }
    __syncwarp();
    const float mean = factors[warp];
    for (int32_t i = lane; i < args.n; i += 32) own[i] = __fsub_rn(own[i], mean);
    __syncwarp();
  }
  if (lane < kNormLanes) {
    const float r = inverse_rms(own, args.n, args.eps, lane);
    if (lane == 0) factors[warp] = r;
  }
  __syncwarp();
  const float r = factors[warp];
  const float* const weights = args.weight + index % args.num_heads * args.weight_step;
#pragma unroll 4
  for (int32_t i = lane; i < args.n; i += 32) {
    const float scaled = __fmul_rn(__fmul_rn(own[i], r), weights[i]);
    const float more = args.bias == nullptr ? 0.0F : args.bias[i];
    out[i] = args.subtracts_mean ? __fadd_rn(scaled, more) : scaled;
  }
}

// Norms a head by a block.
__global__ void __launch_bounds__(kMostThreads, 1)
    long_head_norm_kernel(const __grid_constant__ HeadNormArgs args) {
  GPU_DYN_SHARED_ARRAY(float, staged);
  const int64_t index = blockIdx.x;
  const int64_t first = index / args.num_heads * args.x_stride + index % args.num_heads * args.n;
  const float* const x = args.x + first;
  float* const out = (args.out == nullptr ? args.x : args.out) + first;
  const bool wide = is_wide(x);
  const auto step = static_cast<int32_t>(4 * blockDim.x);
  ptx::start_next_launch();
  ptx::wait_for_launches();
#pragma unroll 4
  for (auto i = static_cast<int32_t>(4 * threadIdx.x); i < args.n; i += step) {
    store_four(staged, i, args.n, true, load_four(x, i, args.n, wide));
  }
  if (args.subtracts_mean) subtract_mean_of_block(staged, args.n);
  const float r = inverse_rms_of_block(staged, args.n, args.eps);
  const bool wide_out = is_wide(out);
  const float* const weights = args.weight + index % args.num_heads * args.weight_step;
  const bool wide_weight = is_wide(weights);
  const NormBias bias = {.adds = args.subtracts_mean, .bias = args.bias};
#pragma unroll 4
  for (auto i = static_cast<int32_t>(4 * threadIdx.x); i < args.n; i += step) {
    const Four weight = load_four(weights, i, args.n, wide_weight);
    const Four value = normed(load_four(staged, i, args.n, true), r, weight);
    store_four(out, i, args.n, wide_out, bias.added(value, i, args.n));
  }
}

// A warp a head of all ranks'.
__global__ void __launch_bounds__(32 * kHeadsPerBlock, 1)
    head_squares_kernel(const __grid_constant__ HeadSquaresArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const int64_t index = int64_t{blockIdx.x} * kHeadsPerBlock + warp;
  if (index >= int64_t{args.num_rows} * args.whole) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t row = index / args.whole;
  const auto column = static_cast<int32_t>(index % args.whole);
  const int32_t head = column - args.first;
  const bool is_own = head >= 0 && head < args.num_heads;
  if (lane >= kNormLanes) return;
  float sum = 0;
  if (is_own) {
    sum = sum_of_squares(args.x + row * args.x_stride + int64_t{head} * args.n, args.n, lane);
  }
  if (lane == 0) args.out[row * args.out_stride + column] = sum;
}

__global__ void __launch_bounds__(kRowThreads, 1)
    joined_norm_kernel(const __grid_constant__ JoinedNormArgs args) {
  GPU_SHARED(float, factor, 1);
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const int64_t row = blockIdx.x;
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int32_t head = 0; head < args.whole; ++head) {
      uint32_t largest = 0;
      for (int32_t part = 0; part < args.num_parts; ++part) {
        const uint32_t bits =
            static_cast<uint32_t>(__float_as_int(args.parts[part][row * args.parts_stride + head]));
        largest = bits > largest ? bits : largest;
      }
      sum = __fadd_rn(sum, __int_as_float(static_cast<int32_t>(largest)));
    }
    factor[0] = inverse_root(sum, args.whole * args.n, args.eps);
  }
  __syncthreads();
  const float r = factor[0];
  float* const x = args.x + row * args.x_stride;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < args.num_heads * args.n; i += kRowThreads) {
    x[i] = __fmul_rn(__fmul_rn(x[i], r), args.weight[i]);
  }
}

}  // namespace

void launch_head_squares(Stream stream, const HeadSquaresArgs& args) {
  gpu::launch(stream,
              {.blocks_x = ceil_div(int64_t{args.num_rows} * args.whole, kHeadsPerBlock),
               .threads = 32 * kHeadsPerBlock,
               .overlaps = overlaps(LaunchKind::kRows, args.num_rows)},
              head_squares_kernel,
              args);
}

void launch_joined_norm(Stream stream, const JoinedNormArgs& args) {
  gpu::launch(stream,
              {.blocks_x = args.num_rows,
               .threads = kRowThreads,
               .overlaps = overlaps(LaunchKind::kRows, args.num_rows)},
              joined_norm_kernel,
              args);
}

void launch_rms_norm(Stream stream, const RmsNormArgs& args) {
  const bool few = args.out.num_rows <= kFewNormRows;
  gpu::launch(stream,
              {.blocks_x = args.out.num_rows,
               .threads = few ? norm_threads(args.out.k) : kManyThreads,
               .shared_bytes = align_up(int64_t{args.out.k}, int64_t{4}) * int64_t{sizeof(float)},
               .overlaps = overlaps(LaunchKind::kRows, args.out.num_rows)},
              few ? rms_norm_kernel<kMostThreads, 4> : rms_norm_kernel<kManyThreads, 1>,
              args);
}

void launch_head_norm(Stream stream, const HeadNormArgs& args) {
  const int64_t heads = int64_t{args.num_rows} * args.num_heads;
  const int64_t bytes = int64_t{args.n} * int64_t{sizeof(float)};
  // Rows have room in whole fours: the compiler reads a long row's last values four at a time.
  const int64_t long_bytes = align_up(int64_t{args.n}, int64_t{4}) * int64_t{sizeof(float)};
  if (args.n > kShortHead) {
    return gpu::launch(stream,
                       {.blocks_x = heads,
                        .threads = norm_threads(args.n),
                        .shared_bytes = long_bytes,
                        .overlaps = overlaps(LaunchKind::kRows, args.num_rows)},
                       long_head_norm_kernel,
                       args);
  }
  gpu::launch(stream,
              {.blocks_x = ceil_div(heads, kHeadsPerBlock),
               .threads = 32 * kHeadsPerBlock,
               .shared_bytes = kHeadsPerBlock * bytes,
               .overlaps = overlaps(LaunchKind::kRows, args.num_rows)},
              head_norm_kernel,
              args);
}

}  // namespace sluice::kernels::cuda
