// SPDX-License-Identifier: Apache-2.0
// Float weights times float rows with the CPU's bits: routers, whose choice must not depend on the
// device, and matrices of F32. Each segment of K is one chain of fma by one thread, which is slow
// with many rows.
#include "engine/core/status.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weights.h"

namespace sluice::kernels::cuda {
namespace {

constexpr int kFloatOutputs = 16;
constexpr int kFloatTokens = 4;
constexpr int kFloatThreads = kSegments * kFloatOutputs;

struct FloatWork {
  Outputs outputs;
  Segments segments;
  int32_t k;
  const std::byte* weight;
  int64_t weight_stride;
  const float* x;
  int64_t x_stride;
};

// Computes the chain of one segment of one output, for the tile's tokens.
template <WeightFormat kFormat>
__device__ __forceinline__ void multiply_floats(const FloatWork& work,
                                                const Tile& tile,
                                                int32_t output,
                                                int32_t segment,
                                                float (&sum)[kFloatTokens]) {
  const Segments own{work.segments.first + segment, 1};
  const std::byte* const weight =
      of_expert(work.weight, work.outputs.expert_stride, tile.expert) + output * work.weight_stride;
  const auto begin = static_cast<int32_t>(own.first_group(work.k)) * kQuantGroup;
  const auto end = static_cast<int32_t>(own.end_group(work.k)) * kQuantGroup;
  const auto left = static_cast<int32_t>(work.segments.first_column(work.k));  // columns before x
  const float* x[kFloatTokens];
#pragma unroll
  for (int i = 0; i < kFloatTokens; ++i) {
    const int32_t token = tile.token + i < tile.token_end ? tile.token + i : tile.token;
    x[i] = work.x + token * work.x_stride - left;
  }
  for (int32_t column = begin; column < end; ++column) {
    const float w = column < work.k ? weight_at<kFormat>(weight, column, 0) : 0.0F;
#pragma unroll
    for (int i = 0; i < kFloatTokens; ++i) sum[i] = __fmaf_rn(w, x[i][column], sum[i]);
  }
}

template <WeightFormat kFormat, bool kExperts>
__global__ void __launch_bounds__(kFloatThreads, 1)
    linear_float_kernel(const __grid_constant__ FloatWork work) {
  GPU_SHARED(float, sums, kSegments* kFloatTokens* kFloatOutputs);
  gpu::ptx::start_next_launch();
  const Outputs& outputs = work.outputs;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for_tiles<kFloatTokens, kExperts, kFloatOutputs>(outputs, [&](const Tile& tile) {
    const int32_t segment = thread / kFloatOutputs;
    const int32_t output = tile.output + thread % kFloatOutputs;
    float sum[kFloatTokens] = {};
    if (segment < work.segments.count && output < outputs.n) {
      multiply_floats<kFormat>(work, tile, output, segment, sum);
    }
#pragma unroll
    for (int i = 0; i < kFloatTokens; ++i) {
      sums[(segment * kFloatTokens + i) * kFloatOutputs + thread % kFloatOutputs] = sum[i];
    }
    __syncthreads();
    const int32_t token = tile.token + segment;  // `segment` numbers tokens from here on
    if (segment < kFloatTokens && token < tile.token_end && output < outputs.n) {
      float s[kSegments];
#pragma unroll
      for (int i = 0; i < kSegments; ++i) {
        s[i] = sums[(i * kFloatTokens + segment) * kFloatOutputs + thread % kFloatOutputs];
      }
      finish<FloatSums>(outputs, fold_segments(s, work.segments.count), tile.expert, output, token);
    }
    __syncthreads();
  });
}

template <WeightFormat kFormat>
void start(Stream stream, const FloatWork& work) {
  const bool experts = has_experts(work.outputs);
  const gpu::LaunchShape shape{.blocks_x = ceil_div(work.outputs.n, kFloatOutputs),
                               .blocks_y = experts ? max_chosen(work.outputs)
                                                   : ceil_div(work.outputs.num_rows, kFloatTokens),
                               .threads = kFloatThreads};
  gpu::launch(stream,
              shape,
              experts ? linear_float_kernel<kFormat, true> : linear_float_kernel<kFormat, false>,
              work);
}

}  // namespace

void launch_linear_float(Stream stream,
                         const LinearMatrixArgs& args,
                         const ExpertMatrices* experts) {
  const PackedWeight& weight = *args.weight;
  CHECK(args.x.format == ActivationFormat::kFloat);
  CHECK_EQ(args.segments.num_columns(weight.k), args.x.k);
  const FloatWork work{.outputs = outputs_of(args, experts),
                       .segments = args.segments,
                       .k = weight.k,
                       .weight = first_of_k(weight),
                       .weight_stride = matrix_row_stride(weight.format, weight.stored_columns()),
                       .x = static_cast<const float*>(args.x.data),
                       .x_stride = align_up(args.x.k, kQuantGroup)};
  switch (weight.format) {
    case WeightFormat::kF32:
      return start<WeightFormat::kF32>(stream, work);
    case WeightFormat::kF16:
      return start<WeightFormat::kF16>(stream, work);
    case WeightFormat::kBF16:
      return start<WeightFormat::kBF16>(stream, work);
    default:
      SLUICE_UNREACHABLE("cuda linear of floats with codes");
  }
}

}  // namespace sluice::kernels::cuda
