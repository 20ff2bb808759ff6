// SPDX-License-Identifier: Apache-2.0
// Linear layers by wgmma for many rows, on Hopper (gemm_wide.h). Layers that share x are one
// launch, whose tiles follow one another. INT8 activations are records of 32 bytes, and the copy
// engine takes about as long for each as for 128 bytes: they are first put in rows in the workspace
// (pack_rows_kernel). INT8 without a workspace is gemm_split.cu's.
#include "kernels/cuda/gemm_wide.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/overlap.h"

namespace sluice::kernels::cuda {
namespace {

namespace ptx = gpu::ptx;

using wide::FourSums;
using wide::kHalf;
using wide::kThreads;
using wide::kTokens;
using wide::Memory;

template <typename Format>
__global__ void __launch_bounds__(kThreads, 1)
    wide_wgmma_kernel(const __grid_constant__ RingWork work) {
  if constexpr (ptx::kHasWgmma) {
    wide::wide_block<Format, wide::Order::kInTurn>(work, [&](int32_t layer, int32_t output) {
      return wide::Finish<Format>(work.layers.each[layer], output);
    });
  }
}

int32_t row_stride(const Matrices& matrices) {
  return static_cast<int32_t>(align_up(matrices.k, kQuantGroup));
}

constexpr int kPackThreads = 256;

// Writes x from kInt8Token's records to rows of `stride` bytes. A thread takes 16 bytes; blocks
// along y have 8 rows each.
__global__ void __launch_bounds__(kPackThreads, 1)
    pack_rows_kernel(const __grid_constant__ Matrices matrices, std::byte* to, int32_t stride) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto at = static_cast<int32_t>(blockIdx.x * kPackThreads + threadIdx.x) * 16;
  const int32_t in_block = at / stride;
  const int32_t column = at % stride;
  const int64_t row = int64_t{blockIdx.y} * kActivationRows + in_block;
  if (in_block >= kActivationRows || row >= matrices.x_rows) return;
  const std::byte* const from = matrices.x + blockIdx.y * matrices.x_stride +
                                column / kQuantGroup * (kActivationRows * kQuantGroup) +
                                in_block * kQuantGroup + column % kQuantGroup;
  *reinterpret_cast<FourSums<int32_t>*>(to + row * stride + column) =
      *reinterpret_cast<const FourSums<int32_t>*>(from);
}

void pack_rows(Stream stream, const Matrices& matrices, void* to) {
  const int32_t stride = row_stride(matrices);
  gpu::launch(stream,
              {.blocks_x = ceil_div(kActivationRows * stride, 16 * kPackThreads),
               .blocks_y = ceil_div(matrices.x_rows, kActivationRows),
               .threads = kPackThreads,
               .overlaps = overlaps(LaunchKind::kLinear, matrices.x_rows)},
              pack_rows_kernel,
              matrices,
              static_cast<std::byte*>(to),
              stride);
}

template <typename Format>
void start(Stream stream, std::span<const Layer> layers) {
  gpu::LaunchShape shape{.threads = kThreads,
                         .shared_bytes = sizeof(Memory<Format>),
                         .overlaps = overlaps(LaunchKind::kLinear, layers[0].outputs.num_rows)};
  const auto kernel = wide_wgmma_kernel<Format>;
  const auto& [matrices, outputs] = layers[0];
  constexpr int kTileTokens = kTokens<Format>;
  RingWork work = ring_work(layers, kTileTokens);
  const int64_t tiles = work.layers.num_tiles * ceil_div(outputs.num_rows, kTileTokens);
  shape.blocks_x = std::min(tiles, gpu::blocks_at_once(shape, kernel));
  if constexpr (std::is_same_v<Format, WgmmaInt8Rows>) {
    const auto* const x = static_cast<const std::byte*>(outputs.workspace);
    work.x = matrix_map(x, 1, matrices.k, outputs.num_rows, row_stride(matrices), kTileTokens);
  }
  gpu::launch(stream, shape, kernel, work);
}

// Whether the kernel can take the sums: floats in whole halves without an empty segment; INT8 as
// one chain of at least a group, with room in the workspace for its rows.
bool fits_wide(const Layer& layer) {
  const auto& [matrices, outputs] = layer;
  if (matrices.format == ActivationFormat::kInt8Token) {
    return outputs.workspace != nullptr && matrices.k > 0;
  }
  return outputs.segments.count >= kHalf && ceil_div(outputs.k, kQuantGroup) >= kSegments;
}

}  // namespace

// Whether gemm_wide.cu takes the layers: with more than kSplitTokens rows always, with fewer if
// tiles of 128 tokens make enough blocks and runs of segments of tiles of 64 would not be faster.
bool takes_wide(std::span<const Layer> layers) {
  const Outputs& outputs = layers[0].outputs;
  if (outputs.num_rows <= kManyTokens || !fits_wide(layers[0])) return false;
  if (outputs.num_rows > kSplitTokens) return true;
  // On an H200's 132 blocks, 96 tiles of 64 take about as long in runs as a tile of each block
  // here.
  const int64_t blocks = gpu::multiprocessors();
  const int64_t down = num_tiles(layers);
  const int64_t run_tiles = down * ceil_div(outputs.num_rows, kManyTokens);
  return run_tiles * 132 >= 96 * blocks * ceil_div(down, blocks);
}

void launch_wide(Stream stream, std::span<const Layer> layers) {
  const auto& [matrices, outputs] = layers[0];
  if (matrices.format == ActivationFormat::kInt8Token) {
    pack_rows(stream, matrices, outputs.workspace);
  }
  with_wgmma(matrices.format, [&]<typename Format>() {
    constexpr bool kPacked = std::is_same_v<Format, WgmmaInt8>;
    start<std::conditional_t<kPacked, WgmmaInt8Rows, Format>>(stream, layers);
  });
}

}  // namespace sluice::kernels::cuda
