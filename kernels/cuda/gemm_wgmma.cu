// SPDX-License-Identifier: Apache-2.0
// Linear layers by wgmma, on Hopper alone: the choice of a launch's kernel, and the kernel of
// experts, in which one thread copies chunks of 128 bytes of K into a ring of stages, and two
// warpgroups of 64 outputs each multiply them with a tile of tokens. A block walks over its
// expert's tiles. The kernel and the blocks decide no bit: each takes the chunks of a segment in
// the same order.
#include <algorithm>

#include "kernels/cuda/gemm_ring.h"

namespace sluice::kernels::cuda {
namespace {

using gpu::TensorMap;
namespace ptx = gpu::ptx;

constexpr int kThreads = kConsumers + 32;  // plus the copying thread's warp

struct ExpertsWork {
  Outputs outputs;
  TensorMap weight;
  TensorMap x;
};

// Copies the chunks, by one thread.
template <typename Format, int kTokens, int kStages>
__device__ __forceinline__ void produce(Ring<kTokens, kStages>& ring,
                                        Cursor<kStages>& at,
                                        const ExpertsWork& work,
                                        const Tile& tile) {
  Walk walk = walk_all<Format>(work.outputs);
  for (; walk.left.begin < walk.left.end; take_chunk<Format>(work.outputs, walk), at.advance()) {
    ptx::mbar_wait(&ring.empty[at.stage], at.parity ^ 1);
    ptx::Mbarrier* const full = &ring.full[at.stage];
    ptx::mbar_arrive_expect_tx(full, (kOutputs + kTokens) * kChunkBytes);
    const int32_t column = walk.left.begin * kQuantGroup;
    ptx::tma_load_4d(
        ring.weight[at.stage], &work.weight, column, tile.output, tile.expert, 0, full);
    Format::load_x(ring.x[at.stage], &work.x, walk.left.begin, tile.token, full);
  }
}

template <int kTokens, int kStages>
struct alignas(1024) Memory {
  Ring<kTokens, kStages> ring;
};

template <typename Format, int kTokens, int kStages>
__device__ __forceinline__ void experts_block(const ExpertsWork& work) {
  using Shared = Memory<kTokens, kStages>;
  GPU_DYN_SHARED(Shared, memory);
  auto& ring = memory.ring;
  const Outputs& outputs = work.outputs;
  if (threadIdx.x == 0) {
    init_ring(ring);
    ptx::fence_mbar_init();
  }
  __syncthreads();
  Cursor<kStages> at;
  if (threadIdx.x < kConsumers) {
    for_tiles<kTokens, true>(outputs, [&](const Tile& tile) {
      typename Format::Sum d[kTokens / 2];
      Promotion<Format, kTokens> promotion(outputs, tile);
      multiply_all(outputs, d, [&](const Groups& groups, auto& part) {
        multiply_chunks(ring, at, outputs, promotion, groups, part);
      });
      store_tile<Format>(outputs, tile, d);
    });
  } else if (threadIdx.x == kConsumers) {
    for_tiles<kTokens, true>(outputs,
                             [&](const Tile& tile) { produce<Format>(ring, at, work, tile); });
  }
}

template <typename Format, int kTokens, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    experts_wgmma_kernel(const __grid_constant__ ExpertsWork work) {
  if constexpr (ptx::kHasWgmma) experts_block<Format, kTokens, kStages>(work);
}

constexpr int kFewStages = 6;
constexpr int kManyStages = 4;

// In tiles of 64, FP8's sums of a chunk would need too many registers beside those of segments.
constexpr int most_tokens(bool is_promoted) { return is_promoted ? 32 : kManyTokens; }

template <typename Format, int kTokens, int kStages>
void start(Stream stream, const ExpertsWork& work) {
  gpu::launch(stream,
              {.blocks_x = ceil_div(work.outputs.n, kOutputs),
               .blocks_y = max_chosen(work.outputs),
               .threads = kThreads,
               .shared_bytes = sizeof(Memory<kTokens, kStages>)},
              experts_wgmma_kernel<Format, kTokens, kStages>,
              work);
}

template <typename Format>
void start(Stream stream, const ExpertsWork& work) {
  if (takes_few_tokens(work.outputs)) return start<Format, kFewTokens, kFewStages>(stream, work);
  start<Format, most_tokens(Format::kIsPromoted), kManyStages>(stream, work);
}

// Returns a map of one matrix of every expert.
TensorMap experts_map(const Matrices& matrices, int32_t element_bytes, const Outputs& outputs) {
  // A map takes no stride of 0, which a single expert has.
  const int64_t stride = std::max(outputs.expert_stride, outputs.n * matrices.weight_stride);
  return map_of(matrices.k,
                {.data = matrices.weight,
                 .element_bytes = element_bytes,
                 .rank = 4,
                 .sizes = {matrices.k, outputs.n, outputs.experts.num_experts, 1},
                 .strides = {0, matrices.weight_stride, stride, stride},
                 .box = {kChunkBytes / element_bytes, kOutputs, 1, 1},
                 .swizzle = gpu::Swizzle::k128});
}

void launch_experts(Stream stream, const Matrices& matrices, const Outputs& outputs) {
  const int tokens = takes_few_tokens(outputs) ? kFewTokens : most_tokens(is_e4m3(matrices.format));
  const ExpertsWork work{.outputs = outputs,
                         .weight = experts_map(matrices, element_bytes(matrices.format), outputs),
                         .x = x_map(matrices, tokens)};
  with_wgmma(matrices.format, [&]<typename Format>() { start<Format>(stream, work); });
}

}  // namespace

void launch_wgmma(Stream stream, std::span<const Layer> layers) {
  if (const auto& [matrices, outputs] = layers[0]; has_experts(outputs)) {
    return launch_experts(stream, matrices, outputs);
  }
  const auto launch = takes_wide(layers) ? launch_wide : launch_split;
  launch(stream, layers);
}

}  // namespace sluice::kernels::cuda
