// SPDX-License-Identifier: Apache-2.0
// Weights times float rows with the CPU's bits: routers, whose choice must not depend on the
// device, matrices of F32, and of a head each (engine/models/latent_mixer.h), which may be codes in
// tiles. Each segment of K is one chain of fma by one thread, which is slow with many rows.
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

constexpr bool takes_float_rows_in_tiles(const PackedLayout& layout) {
  return !layout.has_rows() && !layout.scales_folded_sums();
}

struct FloatWork {
  Outputs outputs;
  Segments segments;
  int32_t k;
  const std::byte* weight;
  int64_t weight_stride;  // bytes from row to row, or from tile to tile
  const float* x;
  int64_t x_stride;
};

// Calls f(column, weight) for the columns of a group of an output in order.
template <WeightFormat kFormat, typename F>
__device__ __forceinline__ void for_weights(
    const FloatWork& work, const std::byte* matrix, int32_t output, int32_t group, F f) {
  const int32_t begin = group * kQuantGroup;
  if constexpr (kLayoutOf<kFormat>.is_float()) {
    const std::byte* const row = matrix + output * work.weight_stride;
    for (int32_t column = begin; column < begin + kQuantGroup; ++column) {
      f(column, column < work.k ? weight_at<kFormat>(row, column, 0) : 0.0F);
    }
  } else {
    const int32_t in_tile = output % kRowTile;
    const GroupAt at = group_at<kFormat>(matrix + output / kRowTile * work.weight_stride, group);
    const GroupScales scales = load_scales<kFormat>(at, in_tile);
    const auto* const registers = reinterpret_cast<const uint32_t*>(at.codes) + in_tile;
    for (int32_t c = 0; c < kQuantGroup / 4; ++c) {
      const uint32_t chunk =
          chunk_of<kFormat>(c, [&](int32_t r) { return registers[r * kRowTile]; });
      const bool second = kHalves<kFormat> && c >= 4;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto code = static_cast<int8_t>(chunk >> (8 * j) & 0xFFU);
        f(begin + 4 * c + j,
          __fmaf_rn(__int2float_rn(code - scales.zero),
                    second ? scales.scale[1] : scales.scale[0],
                    second ? scales.minimum[1] : scales.minimum[0]));
      }
    }
  }
}

// Computes the chain of one segment of one output, for the tile's tokens.
template <WeightFormat kFormat>
__device__ __forceinline__ void multiply_floats(const FloatWork& work,
                                                const Tile& tile,
                                                int32_t output,
                                                int32_t segment,
                                                float (&sum)[kFloatTokens]) {
  const Segments own{work.segments.first + segment, 1};
  const std::byte* const matrix = of_expert(work.weight, work.outputs.expert_stride, tile.expert);
  const auto left = static_cast<int32_t>(work.segments.first_column(work.k));  // columns before x
  const float* x[kFloatTokens];
#pragma unroll
  for (int i = 0; i < kFloatTokens; ++i) {
    const int32_t token = tile.token + i < tile.token_end ? tile.token + i : tile.token;
    x[i] = work.x + token * work.x_stride - left;
  }
  const auto end = static_cast<int32_t>(own.end_group(work.k));
  for (auto group = static_cast<int32_t>(own.first_group(work.k)); group < end; ++group) {
    for_weights<kFormat>(work, matrix, output, group, [&](int32_t column, float w) {
#pragma unroll
      for (int i = 0; i < kFloatTokens; ++i) sum[i] = __fmaf_rn(w, x[i][column], sum[i]);
    });
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

template <WeightFormat kFormat, bool kExperts>
void start(Stream stream, const FloatWork& work) {
  const int64_t rows =
      kExperts ? max_chosen(work.outputs) : ceil_div(work.outputs.num_rows, kFloatTokens);
  gpu::launch(stream,
              {.blocks_x = ceil_div(work.outputs.n, kFloatOutputs),
               .blocks_y = rows,
               .threads = kFloatThreads},
              linear_float_kernel<kFormat, kExperts>,
              work);
}

template <WeightFormat kFormat>
void start(Stream stream, const FloatWork& work) {
  has_experts(work.outputs) ? start<kFormat, true>(stream, work)
                            : start<kFormat, false>(stream, work);
}

}  // namespace

void launch_linear_float(Stream stream,
                         const LinearMatrixArgs& args,
                         const ExpertMatrices* experts) {
  const PackedWeight& weight = *args.weight;
  CHECK(args.x.format == ActivationFormat::kFloat);
  CHECK_EQ(args.segments.num_columns(weight.k), args.x.k);
  const bool in_rows = has_rows(weight.format);
  const FloatWork work{
      .outputs = outputs_of(args, experts),
      .segments = args.segments,
      .k = weight.k,
      .weight = first_of_k(weight),
      .weight_stride = in_rows ? matrix_row_stride(weight.format, weight.stored_columns())
                               : packed_tile_bytes(weight.format, weight.stored_columns()),
      .x = static_cast<const float*>(args.x.data),
      .x_stride = align_up(args.x.k, kQuantGroup)};
  CHECK(takes_float_rows(weight.format) && (in_rows || experts != nullptr));
  with_format(weight.format, [&]<WeightFormat kFormat>() {
    if constexpr (kLayoutOf<kFormat>.is_float()) {
      start<kFormat>(stream, work);
    } else if constexpr (takes_float_rows_in_tiles(kLayoutOf<kFormat>)) {
      start<kFormat, true>(stream, work);
    }
  });
}

bool takes_float_rows(WeightFormat format) {
  const PackedLayout& layout = layout_of(format);
  return layout.is_float() || takes_float_rows_in_tiles(layout);
}

}  // namespace sluice::kernels::cuda
