// SPDX-License-Identifier: Apache-2.0
// The norms of kernels/norm.h over a row in shared memory: 16 lanes have the sums of the
// definition's 16 chains.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {

inline constexpr int kNormLanes = 16;  // the definition's lanes

// Gives lanes 0-15 of a warp, which call it, the sum of x^2. Values are read a batch ahead of the
// chain of additions.
__device__ __forceinline__ float sum_of_squares(const float* x, int32_t n, int lane) {
  constexpr int kBatch = 16;
  constexpr int32_t kStep = kBatch * kNormLanes;
  const int32_t batches = n / kStep;  // batches in which every lane has all its values
  float sum = 0;
  float even[kBatch];
  float odd[kBatch];
  const auto read = [&](int32_t batch, float(&to)[kBatch]) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) to[j] = x[batch * kStep + j * kNormLanes + lane];
  };
  const auto add = [&](const float(&values)[kBatch]) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) sum = __fmaf_rn(values[j], values[j], sum);
  };
  if (batches > 0) read(0, even);
  for (int32_t batch = 0; batch + 1 < batches; batch += 2) {
    read(batch + 1, odd);
    add(even);
    if (batch + 2 < batches) read(batch + 2, even);
    add(odd);
  }
  if (batches % 2 == 1) add(even);
#pragma unroll 8
  for (int32_t i = batches * kStep + lane; i < n; i += kNormLanes) {
    sum = __fmaf_rn(x[i], x[i], sum);
  }
  return sum_of_sixteen(sum, kHalfWarp);
}

__device__ __forceinline__ float inverse_root(float sum, int32_t n, float eps) {
  const float mean = __fdiv_rn(sum, __int2float_rn(n));
  return __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// Gives these lanes 1 / sqrt(mean(x^2) + eps).
__device__ __forceinline__ float inverse_rms(const float* x, int32_t n, float eps, int lane) {
  return inverse_root(sum_of_squares(x, n, lane), n, eps);
}

// Gives lanes 0-15 of a warp, which call it, the mean of x.
__device__ __forceinline__ float mean_of(const float* x, int32_t n, int lane) {
  float sum = 0;
#pragma unroll 8
  for (int32_t i = lane; i < n; i += kNormLanes) sum = __fadd_rn(sum, x[i]);
  return __fdiv_rn(sum_of_sixteen(sum, kHalfWarp), __int2float_rn(n));
}

// Subtracts the mean of a row that the block's threads have written to shared memory. It begins
// with a barrier and ends without one.
__device__ __forceinline__ void subtract_mean_of_block(float* staged, int32_t n) {
  GPU_SHARED(float, shared_mean, 1);
  __syncthreads();
  if (threadIdx.x < kNormLanes) {
    const float mean = mean_of(staged, n, static_cast<int>(threadIdx.x));
    if (threadIdx.x == 0) shared_mean[0] = mean;
  }
  __syncthreads();
  const float mean = shared_mean[0];
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n; i += static_cast<int32_t>(blockDim.x)) {
    staged[i] = __fsub_rn(staged[i], mean);
  }
}

// Gives every thread of the block the factor of a row that they have written to shared memory. It
// begins and ends with a barrier.
__device__ __forceinline__ float inverse_rms_of_block(const float* staged, int32_t n, float eps) {
  GPU_SHARED(float, factor, 1);
  __syncthreads();
  if (threadIdx.x < kNormLanes) {
    const float r = inverse_rms(staged, n, eps, static_cast<int>(threadIdx.x));
    if (threadIdx.x == 0) factor[0] = r;
  }
  __syncthreads();
  return factor[0];
}

__device__ __forceinline__ Four normed(const Four& x, float r, const Four& weight) {
  Four four;
#pragma unroll
  for (int j = 0; j < 4; ++j) four.v[j] = __fmul_rn(__fmul_rn(x.v[j], r), weight.v[j]);
  return four;
}

// A norm's last step, where it has subtracted the mean; others add nothing.
struct NormBias {
  bool adds;
  const float* bias;  // or null

  __device__ __forceinline__ Four added(Four four, int32_t i, int32_t n) const {
    if (!adds) return four;
    Four more = {};
    if (bias != nullptr) more = load_four(bias, i, n, is_wide(bias));
#pragma unroll
    for (int j = 0; j < 4; ++j) four.v[j] = __fadd_rn(four.v[j], more.v[j]);
    return four;
  }
};

// A norm's weights; a thread's first kHeld fours of them are in registers. No launch writes
// weights, so they are read before wait_for_launches.
template <int kHeld>
struct NormWeights {
  const float* weight;
  int32_t n;
  bool wide;
  Four held[kHeld];

  __device__ __forceinline__ NormWeights(const float* of_norm, int32_t count)
      : weight(of_norm), n(count), wide(is_wide(of_norm)) {
#pragma unroll
    for (int s = 0; s < kHeld; ++s) {
      const auto vector = static_cast<int32_t>(threadIdx.x + s * blockDim.x);
      if (4 * vector < n) held[s] = load_four(weight, 4 * vector, n, wide);
    }
  }
};

// Writes the row in `staged`, normalized; what follows its k values there does not matter.
template <int kHeld>
__device__ __forceinline__ void write_normed(const Activations& out,
                                             int64_t row_index,
                                             const float* staged,
                                             float r,
                                             const NormWeights<kHeld>& weights,
                                             const NormBias& bias) {
  const auto value = [&](int32_t i, const Four& weight) {
    return bias.added(normed(load_four(staged, i, out.k, true), r, weight), i, out.k);
  };
  if (has_row_scales(out.format)) {
    const auto held = [&](int s, int32_t i) { return value(i, weights.held[s]); };
    const auto other = [&](int32_t i) {
      return value(i, load_four(weights.weight, i, out.k, weights.wide));
    };
    if (out.format == ActivationFormat::kInt8Token) {
      return write_token_row<Int8Codes, kHeld>(out, row_index, held, other);
    }
    return write_token_row<E4M3Codes, kHeld>(out, row_index, held, other);
  }
  const int32_t vectors = vectors_of(out);
  const DeviceRow row = row_of(out, row_index);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto write = [&](int32_t vector, const Four& weight) {
    const bool inside = vector < vectors;
    Four four = {};
    if (inside) {
      four = value(4 * vector, weight);
      clear_from(four, 4 * vector, out.k);
    }
    write_four(out.format, row, vector, four, inside);
  };
#pragma unroll
  for (int s = 0; s < kHeld; ++s) {
    const auto vector = static_cast<int32_t>(threadIdx.x + s * blockDim.x);
    if (vector - lane < vectors) write(vector, weights.held[s]);
  }
  for (auto vector = static_cast<int32_t>(threadIdx.x + kHeld * blockDim.x);
       vector - lane < vectors;
       vector += static_cast<int32_t>(blockDim.x)) {
    Four weight = {};
    if (vector < vectors) weight = load_four(weights.weight, 4 * vector, out.k, weights.wide);
    write(vector, weight);
  }
}

inline constexpr int64_t kFewNormRows = 264;  // two on each SM of a large device

// Returns the threads for a row of n where there are few rows: eight values each, or more with 512.
constexpr int norm_threads(int32_t n) { return n <= 1024 ? 128 : n <= 2048 ? 256 : 512; }

}  // namespace sluice::kernels::cuda
