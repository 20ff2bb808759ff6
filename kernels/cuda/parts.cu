// SPDX-License-Identifier: Apache-2.0
// kernels/parts.h, and the segments of a linear layer that ran side by side, which are parts too:
// of one device.
#include "kernels/parts.h"

#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/gpu.h"
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

// Blocks: tokens along x, outputs along y.
template <typename Format>
__global__ void __launch_bounds__(kFoldThreads, 1)
    fold_kernel(const __grid_constant__ Outputs outputs, const __grid_constant__ Parts parts) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto token = static_cast<int32_t>(blockIdx.x);
  const auto output = static_cast<int32_t>(blockIdx.y * kFoldThreads + threadIdx.x);
  if (output < outputs.n) fold_element<Format>(outputs, parts, 0, output, token);
}

// Blocks: outputs along x, experts along y, each with all of its rows.
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

constexpr int kFoldTokens = kFoldThreads / 32;  // of a block, all of one tile

// Bit i: a run begins at the tile's segment i, which is not its first.
__device__ __forceinline__ uint32_t find_cuts(int32_t run, int32_t tile, int32_t count) {
  uint32_t cuts = 0;
  for (int32_t i = run - tile * count % run; i < count; i += run) cuts |= 1U << i;
  return cuts;
}

// Whether a run begins behind the first of the segments [first, first + width).
__device__ __forceinline__ bool is_cut(uint32_t cuts, int first, int width) {
  return (cuts >> first & ((1U << width) - 2)) != 0;
}

// Whether the workspace has a part of the tile that begins at `segment`: a subtree that no run cuts
// while its parent is cut, or, where sums are exact, all that a run has of the tile.
template <typename Format>
__device__ __forceinline__ bool has_part(uint32_t cuts, int segment, int32_t count) {
  if (segment >= count) return false;
  if constexpr (Format::kInOnePiece) {
    return segment == 0 || (cuts >> segment & 1) != 0;
  } else {
#pragma unroll
    for (int width = 2; width < kSegments; width *= 2) {
      const int parent = segment / width * width;
      if (parent != segment && width < count && !is_cut(cuts, parent, width)) return false;
    }
    return true;
  }
}

// Blocks: tokens along x, a warp each, tiles of outputs along y.
template <typename Format>
__global__ void __launch_bounds__(kFoldThreads, 1)
    fold_runs_kernel(const __grid_constant__ Together layers, const Runs runs) {
  using Sum = typename Format::Sum;
  constexpr int kOwn = kOutputs / 32;  // outputs of a lane
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto token = static_cast<int32_t>(blockIdx.x * kFoldTokens + threadIdx.x / 32);
  const Place place = place_of(layers, static_cast<int32_t>(blockIdx.y));
  const Outputs& outputs = layers.each[place.layer];
  const int32_t first = place.output + static_cast<int32_t>(threadIdx.x % 32);
  const auto across = static_cast<int32_t>(ceil_div(outputs.num_rows, runs.tile_tokens));
  const int32_t count = outputs.segments.count;
  const int32_t tile = static_cast<int32_t>(blockIdx.y) * across + token / runs.tile_tokens;
  const uint32_t cuts = find_cuts(runs.length, tile, count);
  if (token >= outputs.num_rows || cuts == 0) return;
  const auto* const parts =
      static_cast<const Sum*>(outputs.workspace) + int64_t{token} * outputs.n + first;
  const int64_t stride = int64_t{outputs.num_rows} * outputs.n;
  Sum s[kOwn][kSegments];
#pragma unroll
  for (int part = 0; part < kSegments; ++part) {
    const bool is_there = has_part<Format>(cuts, part, count);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool is_inside = is_there && first + 32 * i < outputs.n;
      s[i][part] = is_inside ? parts[part * stride + 32 * i] : Sum{0};
    }
  }
#pragma unroll
  for (int width = 1; width < kSegments; width *= 2) {
    if (width >= count) break;
#pragma unroll
    for (int part = 0; part < kSegments; part += 2 * width) {
      if (!Format::kInOnePiece && !is_cut(cuts, part, 2 * width)) continue;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) s[i][part] = sum_of(s[i][part], s[i][part + width]);
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int32_t output = first + 32 * i;
    if (output < outputs.n) finish<Format>(outputs, s[i][0], 0, output, token);
  }
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

}  // namespace

void launch_fold(Stream stream, bool int8, const Outputs& outputs, const Parts& parts) {
  if (has_experts(outputs)) {
    return gpu::launch(stream,
                       {.blocks_x = ceil_div(outputs.n, kFoldThreads),
                        .blocks_y = max_chosen(outputs),
                        .threads = kFoldThreads},
                       int8 ? fold_experts_kernel<Int8Sums> : fold_experts_kernel<FloatSums>,
                       outputs,
                       parts);
  }
  const gpu::LaunchShape shape{.blocks_x = outputs.num_rows,
                               .blocks_y = ceil_div(outputs.n, kFoldThreads),
                               .threads = kFoldThreads,
                               .overlaps = overlaps(LaunchKind::kRows, outputs.num_rows)};
  gpu::launch(stream, shape, int8 ? fold_kernel<Int8Sums> : fold_kernel<FloatSums>, outputs, parts);
}

void launch_fold_runs(Stream stream, bool int8, const Together& layers, const Runs& runs) {
  const gpu::LaunchShape shape{.blocks_x = ceil_div(layers.each[0].num_rows, kFoldTokens),
                               .blocks_y = layers.num_tiles,
                               .threads = kFoldThreads,
                               .overlaps = overlaps(LaunchKind::kLinear, layers.each[0].num_rows)};
  const auto kernel = int8 ? fold_runs_kernel<Int8Sums> : fold_runs_kernel<FloatSums>;
  gpu::launch(stream, shape, kernel, layers, runs);
}

void launch_join_parts(Stream stream, const JoinPartsArgs& args, const ExpertMatrices* experts) {
  CHECK_LE(args.parts.size(), size_t{kSegments});
  const PackedWeight& weight = *args.weight;
  const bool int8 = weight.format == WeightFormat::kInt8Channel;
  Outputs outputs{};
  outputs.k = weight.k;
  outputs.n = weight.n;
  outputs.num_rows = args.x.num_rows;
  outputs.bias = args.bias;
  outputs.add = args.epilogue == Epilogue::kAdd;
  outputs.out = args.out;
  outputs.out_stride = args.out_stride;
  if (experts != nullptr) {
    outputs.experts = experts->rows;
    outputs.expert_stride = experts->stride;
  }
  if (int8) {
    CHECK(args.x.format == ActivationFormat::kInt8Token);
    const int64_t scales = matrix_scales_offset(weight.format, weight.n, weight.stored_columns());
    outputs.weight_scale = reinterpret_cast<const float*>(weight.data + scales);
    outputs.heads = static_cast<const std::byte*>(args.x.data);
    outputs.block_bytes = token_block_bytes(args.x.k);
  }
  Parts parts{.parts = {}, .count = static_cast<int32_t>(args.parts.size())};
  std::ranges::copy(args.parts, parts.parts);
  launch_fold(stream, int8, outputs, parts);
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
