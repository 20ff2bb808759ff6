// SPDX-License-Identifier: Apache-2.0
// The layers of gemm_tiles.h for many tokens: a block has 128 outputs and 64 tokens, which each of
// its warps multiplies with 16 outputs, and goes through all of K, so that tokens are copied once
// for 128 outputs. A lane's products and the tree are the same.
#pragma once

#include "kernels/cuda/gemm_tiles.h"

namespace sluice::kernels::cuda {

inline constexpr int kWideWarps = kOutputs / kRowTile;
inline constexpr int kWideThreads = kWideWarps * 32;
inline constexpr int kWideTokenGroups = kManyTokens / kActivationRows;
static_assert(kWideTokenGroups == kWideWarps);  // a warp copies one of each

template <typename Numbers>
struct WideStage {
  alignas(kPieceBytes) std::byte weight[kWideWarps][GroupRecord<Numbers::kFormat>::kBytes];
  alignas(kPieceBytes) std::byte x[kWideTokenGroups][Numbers::kTokenBytes];
};

template <typename Numbers, int kStages>
struct WideMemory {
  WideStage<Numbers> ring[kStages];
};

// The groups of a block's tile on their way through its ring, by all threads.
template <typename Numbers, int kStages>
class WideRing {
 public:
  using Memory = WideMemory<Numbers, kStages>;

  __device__ __forceinline__ WideRing(Memory& memory, const TilesWork& work, const Tile& tile)
      : memory_(memory),
        work_(work),
        tile_(tile),
        next_(static_cast<int32_t>(work.segments.first_group(work.k))),
        end_(static_cast<int32_t>(work.segments.end_group(work.k))) {
    __syncthreads();  // no thread reads the ring any more
    for (int stage = 0; stage < kStages - 1; ++stage) copy(stage);
  }

  // Waits for the next group and returns its stage.
  __device__ __forceinline__ const WideStage<Numbers>& advance() {
    gpu::ptx::cp_async_wait<kStages - 2>();
    __syncthreads();  // all copies are there, and no thread reads the stage before
    copy(stage_ == 0 ? kStages - 1 : stage_ - 1);
    const WideStage<Numbers>& stage = memory_.ring[stage_];
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    return stage;
  }

 private:
  // Issues a group of copies, empty past the last group of 32, so that both count alike.
  __device__ __forceinline__ void copy(int stage) {
    if (next_ < end_) {
      const auto warp = static_cast<int32_t>(threadIdx.x / 32);
      WideStage<Numbers>& to = memory_.ring[stage];
      copy_record<Numbers::kFormat>(to.weight[warp], work_, tile_, warp, next_);
      const int32_t token = tile_.token + warp * kActivationRows;
      if (token < tile_.token_end) {
        Numbers::copy_tokens(to.x[warp], work_, token, tile_.token_end, next_);
      }
      ++next_;
    }
    gpu::ptx::cp_async_commit();
  }

  Memory& memory_;
  const TilesWork& work_;
  const Tile& tile_;
  int32_t next_;   // group to copy
  int32_t end_;    // one past all segments
  int stage_ = 0;  // the next group's
};

// d = a warp's 16 outputs over the next `groups`; 0 for none.
template <typename Numbers, int kStages, int kWords>
__device__ __forceinline__ void multiply_groups(WideRing<Numbers, kStages>& ring,
                                                const Tile& tile,
                                                int32_t groups,
                                                float (&d)[kWords]) {
  static_assert(kWords == 4 * kWideTokenGroups);
#pragma unroll
  for (int i = 0; i < kWords; ++i) d[i] = 0;
  for (; groups > 0; --groups) {
    const WideStage<Numbers>& stage = ring.advance();
    const typename Numbers::Weights w = Numbers::load_weights(stage.weight[threadIdx.x / 32]);
#pragma unroll
    for (int g = 0; g < kWideTokenGroups; ++g) {
      if (tile.token + g * kActivationRows >= tile.token_end) break;
      Numbers::add_group(w, Numbers::load_tokens(stage.x[g]), &d[4 * g]);
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) d[i] = Numbers::segment_sum(d[i]);
}

template <typename Numbers, int kStages>
__global__ void __launch_bounds__(kWideThreads, 1)
    linear_wide_tiles_kernel(const __grid_constant__ TilesWork work) {
  using Memory = WideMemory<Numbers, kStages>;
  GPU_DYN_SHARED(Memory, memory);
  gpu::ptx::start_next_launch();
  const Outputs& outputs = work.outputs;
  const TokenTiles tiles = token_tiles<kManyTokens>(outputs);
  for (int32_t first = tiles.first; first < tiles.stop; first += kManyTokens) {
    const Tile tile{tiles.expert, static_cast<int32_t>(blockIdx.x) * kOutputs, first, tiles.end};
    WideRing<Numbers, kStages> ring(memory, work, tile);
    float d[4 * kWideTokenGroups];
    multiply_all(outputs, d, [&](const Groups& groups, auto& part) {
      multiply_groups(ring, tile, groups.end - groups.begin, part);
    });
    store_tile<TileSums<Numbers::kFormat>>(outputs, tile, d);
  }
}

// Shared memory of a block on the smallest of the devices with these instructions.
inline constexpr size_t kMostTilesBytes = size_t{99} << 10;

template <typename Numbers, int kTiles, int kTokens, int kStages>
void start_tiles(Stream stream, const TilesWork& work) {
  using Memory = BlockMemory<Numbers, kTiles, kTokens, kStages>;
  static_assert(sizeof(Memory) <= kMostTilesBytes);
  const Outputs& outputs = work.outputs;
  const gpu::LaunchShape shape{
      .blocks_x = ceil_div(outputs.n, kTiles * kRowTile),
      .blocks_y = has_experts(outputs) ? max_chosen(outputs) : ceil_div(outputs.num_rows, kTokens),
      .threads = kTilesThreads,
      .shared_bytes = sizeof(Memory)};
  gpu::launch(stream, shape, linear_tiles_kernel<Numbers, kTiles, kTokens, kStages>, work);
}

template <typename Numbers, int kStages>
void start_wide_tiles(Stream stream, const TilesWork& work) {
  using Memory = WideMemory<Numbers, kStages>;
  static_assert(sizeof(Memory) <= kMostTilesBytes);
  const Outputs& outputs = work.outputs;
  const gpu::LaunchShape shape{.blocks_x = ceil_div(outputs.n, kOutputs),
                               .blocks_y = has_experts(outputs)
                                               ? max_chosen(outputs)
                                               : ceil_div(outputs.num_rows, kManyTokens),
                               .threads = kWideThreads,
                               .shared_bytes = sizeof(Memory)};
  gpu::launch(stream, shape, linear_wide_tiles_kernel<Numbers, kStages>, work);
}

// Few tokens: one tile of outputs a block, so that there are blocks for the whole device, and a
// longer ring, since their groups are short. More tokens: two, so that activations are read half as
// often. Eight where tokens alone make enough blocks.
template <typename Numbers>
void start_tiles(Stream stream, const TilesWork& work) {
  const Outputs& outputs = work.outputs;
  if (takes_few_tokens(outputs)) return start_tiles<Numbers, 1, kFewTokens, 8>(stream, work);
  const int64_t experts = has_experts(outputs) ? outputs.experts.num_experts : 1;
  if (outputs.num_rows <= kManyTokens * experts)
    return start_tiles<Numbers, 2, 32, 3>(stream, work);
  start_wide_tiles<Numbers, 4>(stream, work);
}

}  // namespace sluice::kernels::cuda
