// SPDX-License-Identifier: Apache-2.0
// The operators of kernels/partial_sums.h, and the join of a linear layer's segments that mma.sync
// ran side by side, which are one device's parts.
#include "kernels/partial_sums.h"

#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/join_outputs.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

namespace ptx = gpu::ptx;

constexpr int kFoldThreads = 128;

template <typename Format>
__device__ __forceinline__ void fold_element(
    const Outputs& outputs, const Parts& parts, int32_t expert, int32_t output, int32_t token) {
  using Sum = typename Format::Sum;
  const int64_t at = int64_t{token} * outputs.n + output;
  Sum s[kSegments];
#pragma unroll
  for (int i = 0; i < kSegments; ++i) {
    if (i < parts.count) s[i] = static_cast<const Sum*>(parts.parts[i])[at];
  }
  finish<Format>(outputs, fold_segments(s, parts.count), expert, output, token);
}

// Blocks have tokens along x, outputs along y.
template <typename Format>
__global__ void __launch_bounds__(kFoldThreads, 1)
    fold_kernel(const __grid_constant__ Outputs outputs, const __grid_constant__ Parts parts) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto token = static_cast<int32_t>(blockIdx.x);
  const auto output = static_cast<int32_t>(blockIdx.y * kFoldThreads + threadIdx.x);
  if (output < outputs.n) fold_element<Format>(outputs, parts, 0, output, token);
}

// Blocks have outputs along x, experts along y, each with all of its rows.
template <typename Format>
__global__ void __launch_bounds__(kFoldThreads, 1)
    fold_experts_kernel(const __grid_constant__ Outputs outputs,
                        const __grid_constant__ Parts parts) {
  for_tiles<1, true, kFoldThreads>(outputs, [&](const Tile& tile) {
    const int32_t output = tile.output + static_cast<int32_t>(threadIdx.x);
    if (output >= outputs.n) return;
    fold_element<Format>(outputs, parts, tile.expert, output, tile.token);
  });
}

__global__ void __launch_bounds__(kRowThreads, 1)
    row_magnitudes_kernel(const __grid_constant__ RowMagnitudesArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const int64_t row = blockIdx.x;
  const float* const x = args.x + row * args.x_stride;
  const bool wide = is_wide(x);
  int32_t mine = 0;
#pragma unroll 4
  for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < args.n; i += 4 * kRowThreads) {
    const int32_t bits = largest_of(load_four(x, i, args.n, wide));
    mine = bits > mine ? bits : mine;
  }
  const int32_t largest = largest_of_block(mine);
  if (threadIdx.x == 0) args.out[row] = largest;
}

template <typename Format>
void start_fold(Stream stream, const Outputs& outputs, const Parts& parts) {
  if (has_experts(outputs)) {
    return gpu::launch(stream,
                       {.blocks_x = ceil_div(outputs.n, kFoldThreads),
                        .blocks_y = max_chosen(outputs),
                        .threads = kFoldThreads},
                       fold_experts_kernel<Format>,
                       outputs,
                       parts);
  }
  const gpu::LaunchShape shape{.blocks_x = outputs.num_rows,
                               .blocks_y = ceil_div(outputs.n, kFoldThreads),
                               .threads = kFoldThreads,
                               .overlaps = overlaps(LaunchKind::kRows, outputs.num_rows)};
  gpu::launch(stream, shape, fold_kernel<Format>, outputs, parts);
}

}  // namespace

void launch_fold(Stream stream, ActivationFormat x, const Outputs& outputs, const Parts& parts) {
  switch (x) {
    case ActivationFormat::kInt8Token:
      return start_fold<Int8Sums>(stream, outputs, parts);
    case ActivationFormat::kE4M3Token:
      return start_fold<E4M3Sums>(stream, outputs, parts);
    default:
      return start_fold<FloatSums>(stream, outputs, parts);
  }
}

void launch_fold_heads(Stream stream, const Outputs& outputs, const Parts& parts) {
  start_fold<HeadSums>(stream, outputs, parts);
}

JoinedOutputs joined_outputs(const JoinPartsArgs& args) {
  const PackedWeight& weight = *args.weight;
  const PackedLayout& layout = layout_of(weight.format);
  Outputs outputs{};
  outputs.k = weight.k;
  outputs.n = weight.n;
  outputs.num_rows = args.x.num_rows;
  outputs.bias = args.bias;
  outputs.add = args.epilogue == Epilogue::kAdd;
  outputs.out = args.out;
  outputs.out_stride = args.out_stride;
  const bool has_channels = layout.scales == ScaleLayout::kChannel;
  if (has_channels) {
    const bool int8 = layout.is_integer();
    CHECK(args.x.format == (int8 ? ActivationFormat::kInt8Token : ActivationFormat::kE4M3Token));
    const int64_t scales = matrix_scales_offset(weight.format, weight.n, weight.stored_columns());
    outputs.weight_scale = reinterpret_cast<const float*>(weight.data + scales);
    outputs.heads = static_cast<const std::byte*>(args.x.data);
    outputs.block_bytes =
        int8 ? token_block_bytes(args.x.k) : e4m3_block_bytes(args.x.format, args.x.k);
  }
  const bool has_heads = !layout.has_rows() && layout.scales_folded_sums();
  if (has_heads) {
    outputs.heads = weight.data;
    outputs.block_bytes = packed_tile_bytes(weight.format, weight.stored_columns());
  }
  const ActivationFormat format = has_channels ? args.x.format : ActivationFormat::kBF16;
  return {.outputs = outputs, .format = format, .has_heads = has_heads};
}

void launch_join_parts(Stream stream, const JoinPartsArgs& args, const ExpertMatrices* experts) {
  CHECK_LE(args.parts.size(), size_t{kSegments});
  JoinedOutputs joined = joined_outputs(args);
  if (experts != nullptr) {
    joined.outputs.experts = experts->rows;
    joined.outputs.expert_stride = experts->stride;
  }
  Parts parts{.parts = {}, .count = static_cast<int32_t>(args.parts.size())};
  std::ranges::copy(args.parts, parts.parts);
  if (joined.has_heads) return launch_fold_heads(stream, joined.outputs, parts);
  launch_fold(stream, joined.format, joined.outputs, parts);
}

void launch_row_magnitudes(Stream stream, const RowMagnitudesArgs& args) {
  gpu::launch(stream,
              {.blocks_x = args.num_rows,
               .threads = kRowThreads,
               .overlaps = overlaps(LaunchKind::kRows, args.num_rows)},
              row_magnitudes_kernel,
              args);
}

}  // namespace sluice::kernels::cuda
