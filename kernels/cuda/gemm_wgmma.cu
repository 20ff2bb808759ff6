// SPDX-License-Identifier: Apache-2.0
// Linear layers by wgmma, on Hopper alone. One thread copies chunks of 128 bytes of K into a ring
// of stages; two warpgroups of 64 outputs each multiply them with a tile of tokens.
//
// With more than one tile of tokens, blocks of the same outputs are clusters of two, and each
// copies half of a chunk's weights to both. A chunk is 16 KB of weights and 8 KB of tokens: two
// blocks alone take 48 KB from L2, two that share the weights 32 KB, two that shared the tokens 40
// KB. The last of an odd number of tiles is a block alone, whose peer leaves at once. Experts are
// not paired: a block walks over its expert's tiles, so that there are no two with the same
// weights. Which blocks share what decides no bit: each sees the chunks in the same order.
#include "engine/core/status.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/ring.h"

namespace sluice::kernels::cuda {

using gpu::Swizzle;
using gpu::TensorMap;
namespace ptx = gpu::ptx;

inline constexpr uint32_t kAtomBytes = 8 * kChunkBytes;  // of 8 rows with all of a chunk

// The formats have names outside of this file because nvcc complains of functions of its own that a
// file does not use, and code for other devices, whose kernels are empty, does not use these.
struct WgmmaHalf : FloatSums {
  static constexpr int32_t kElementBytes = 2;

  __device__ __forceinline__ static void load_x(
      void* to, const TensorMap* map, int32_t group, int32_t token, ptx::Mbarrier* full) {
    ptx::tma_load_2d(to, map, group * kQuantGroup, token, full);
  }

  // x is [tokens][128 bytes].
  __device__ __forceinline__ static uint64_t x_descriptor(uint32_t x, int step) {
    const auto offset = static_cast<uint32_t>(step * kStepBytes);
    return ptx::matrix_descriptor(x + offset, Swizzle::k128, kAtomBytes);
  }
};

struct WgmmaBf16 : WgmmaHalf {
  template <int kWords>
  __device__ __forceinline__ static void multiply(float (&d)[kWords],
                                                  uint64_t a,
                                                  uint64_t b,
                                                  bool accumulate) {
    ptx::wgmma_bf16(d, a, b, accumulate);
  }
};

struct WgmmaF16 : WgmmaHalf {
  template <int kWords>
  __device__ __forceinline__ static void multiply(float (&d)[kWords],
                                                  uint64_t a,
                                                  uint64_t b,
                                                  bool accumulate) {
    ptx::wgmma_f16(d, a, b, accumulate);
  }
};

struct WgmmaInt8 : Int8Sums {
  static constexpr int32_t kElementBytes = 1;

  __device__ __forceinline__ static void load_x(
      void* to, const TensorMap* map, int32_t group, int32_t token, ptx::Mbarrier* full) {
    ptx::tma_load_4d(to, map, 0, 0, group, token / kActivationRows, full);
  }

  // x is [blocks of 8 tokens][4 groups][8][32 bytes], as the records are in global memory.
  __device__ __forceinline__ static uint64_t x_descriptor(uint32_t x, int step) {
    const auto offset = static_cast<uint32_t>(step * kActivationRows * kStepBytes);
    return ptx::matrix_descriptor(x + offset, Swizzle::k32, kAtomBytes);
  }

  template <int kWords>
  __device__ __forceinline__ static void multiply(int32_t (&d)[kWords],
                                                  uint64_t a,
                                                  uint64_t b,
                                                  bool accumulate) {
    ptx::wgmma_s8(d, a, b, accumulate);
  }
};

namespace {

constexpr int kWarpgroups = kOutputs / 64;
constexpr int kConsumers = 128 * kWarpgroups;
constexpr int kThreads = kConsumers + 32;  // and the warp of the copying thread
constexpr int kPair = 2;                   // blocks that share their weights

template <int kTokens, int kStages>
struct Ring {
  alignas(1024) std::byte weight[kStages][kOutputs * kChunkBytes];
  alignas(1024) std::byte x[kStages][kTokens * kChunkBytes];
  ptx::Mbarrier full[kStages];
  ptx::Mbarrier empty[kStages];
};

struct Work {
  Outputs outputs;
  TensorMap weight;
  TensorMap x;
};

// A block that copies all of its weights, and reads them alone.
template <bool kExperts>
struct Alone {
  __device__ __forceinline__ int readers() const { return kConsumers / 32; }

  __device__ __forceinline__ void meet() const { __syncthreads(); }

  __device__ __forceinline__ void wait_empty(ptx::Mbarrier* empty, int parity) const {
    ptx::mbar_wait(empty, parity);
  }

  __device__ __forceinline__ void release(ptx::Mbarrier* empty) const {
    if (threadIdx.x % 32 == 0) ptx::mbar_arrive(empty);
  }

  __device__ __forceinline__ void load_weight(std::byte* to,
                                              const Work& work,
                                              const Tile& tile,
                                              int32_t column,
                                              ptx::Mbarrier* full) const {
    if constexpr (kExperts) {
      ptx::tma_load_4d(to, &work.weight, column, tile.output, tile.expert, 0, full);
    } else {
      ptx::tma_load_2d(to, &work.weight, column, tile.output, full);
    }
  }

  __device__ __forceinline__ void leave() const {}
};

// A block of a cluster with the same weights: each copies its part of a chunk to all, when all have
// read what was there before.
template <int kMostBlocks>
struct Together {
  static constexpr int kPartOutputs = kOutputs / kMostBlocks;

  int rank;
  int blocks;  // the first ones; the others have no tokens and have left

  __device__ __forceinline__ int readers() const { return blocks * (kConsumers / 32); }

  __device__ __forceinline__ void meet() const {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }

  __device__ __forceinline__ void wait_empty(ptx::Mbarrier* empty, int parity) const {
    ptx::mbar_wait_cluster(empty, parity);
  }

  __device__ __forceinline__ void release(ptx::Mbarrier* empty) const {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    if (lane < blocks) ptx::mbar_arrive_peer(ptx::peer_address(empty, lane));
  }

  __device__ __forceinline__ void load_weight(std::byte* to,
                                              const Work& work,
                                              const Tile& tile,
                                              int32_t column,
                                              ptx::Mbarrier* full) const {
    const auto everyone = static_cast<uint16_t>((1 << blocks) - 1);
    for (int part = rank; part < kMostBlocks; part += blocks) {
      ptx::tma_load_multicast_2d(to + part * kPartOutputs * kChunkBytes,
                                 &work.weight,
                                 column,
                                 tile.output + part * kPartOutputs,
                                 full,
                                 everyone);
    }
  }

  // Before that the last arrivals of peers come here.
  __device__ __forceinline__ void leave() const { meet(); }
};

template <typename Sharing, int kTokens, int kStages>
__device__ __forceinline__ void initialize(Ring<kTokens, kStages>& ring, const Sharing& sharing) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbar_init(&ring.full[stage], 1);
      // An arrival of each warp, so that no warp waits for another before it arrives.
      ptx::mbar_init(&ring.empty[stage], sharing.readers());
    }
    ptx::fence_mbar_init();
  }
  sharing.meet();
}

// Copies the chunks of a tile, by one thread. `ahead`: the ring is new, and no launch in front says
// which weights the tile has, so that those of its first stages come while they still run.
template <typename Format, typename Sharing, int kTokens, int kStages>
__device__ __forceinline__ void produce(Ring<kTokens, kStages>& ring,
                                        Cursor<kStages>& at,
                                        const Sharing& sharing,
                                        const Work& work,
                                        const Tile& tile,
                                        Walk walk,
                                        bool ahead) {
  const auto begin_chunk = [&](int stage, const Walk& chunk) {
    ptx::Mbarrier* const full = &ring.full[stage];
    ptx::mbar_arrive_expect_tx(full, (kOutputs + kTokens) * kChunkBytes);
    const int32_t column = chunk.left.begin * kQuantGroup;
    sharing.load_weight(ring.weight[stage], work, tile, column, full);
  };
  int begun = 0;
  if (ahead) {
    Walk first = walk;
    for (; begun < kStages && first.left.begin < first.left.end;
         take_chunk<Format>(work.outputs, first)) {
      begin_chunk(begun++, first);
    }
    ptx::wait_for_launches();
  }
  for (; walk.left.begin < walk.left.end; take_chunk<Format>(work.outputs, walk), at.advance()) {
    if (begun > 0) {
      --begun;
    } else {
      sharing.wait_empty(&ring.empty[at.stage], at.parity ^ 1);
      begin_chunk(at.stage, walk);
    }
    Format::load_x(ring.x[at.stage], &work.x, walk.left.begin, tile.token, &ring.full[at.stage]);
  }
}

// d (+)= the products of steps [first, first + kCount) of a chunk.
template <typename Format, int kCount, int kWords>
__device__ __forceinline__ void multiply_steps(
    uint32_t weight, uint32_t x, int first, bool accumulate, typename Format::Sum (&d)[kWords]) {
  ptx::fence_registers(d);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = first; step < first + kCount; ++step) {
    const auto offset = static_cast<uint32_t>(step * kStepBytes);
    const uint64_t a = ptx::matrix_descriptor(weight + offset, Swizzle::k128, kAtomBytes);
    Format::multiply(d, a, Format::x_descriptor(x, step), accumulate || step > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
}

// d = the chain over `groups` from where the ring is; 0 for none. What a chunk has behind them is
// another segment's.
template <typename Format, typename Sharing, int kTokens, int kStages, int kWords>
__device__ __forceinline__ void multiply_chunks(Ring<kTokens, kStages>& ring,
                                                Cursor<kStages>& at,
                                                const Sharing& sharing,
                                                int32_t groups,
                                                typename Format::Sum (&d)[kWords]) {
  if (groups == 0) {
    for (int i = 0; i < kWords; ++i) d[i] = 0;
    return;
  }
  constexpr int32_t kGroups = kChunkGroups<Format>;
  constexpr int kGroupSteps = kSteps / kGroups;
  const auto warpgroup_rows = static_cast<uint32_t>(threadIdx.x / 128 * 64 * kChunkBytes);
  bool accumulate = false;
  for (; groups > 0; groups -= kGroups, accumulate = true, at.advance()) {
    ptx::mbar_wait(&ring.full[at.stage], at.parity);
    const uint32_t weight = ptx::shared_address(ring.weight[at.stage]) + warpgroup_rows;
    const uint32_t x = ptx::shared_address(ring.x[at.stage]);
    if (groups >= kGroups) {
      multiply_steps<Format, kSteps>(weight, x, 0, accumulate, d);
    } else {
      for (int32_t group = 0; group < groups; ++group) {
        multiply_steps<Format, kGroupSteps>(weight, x, group * kGroupSteps, accumulate, d);
      }
    }
    sharing.release(&ring.empty[at.stage]);
  }
  ptx::fence_registers(d);
}

template <typename Format, bool kExperts, int kTokens, int kStages, typename Sharing>
__device__ __forceinline__ void linear_block(const Work& work, const Sharing& sharing) {
  using Stages = Ring<kTokens, kStages>;
  GPU_DYN_SHARED(Stages, ring);
  const Outputs& outputs = work.outputs;
  ptx::start_next_launch();
  initialize(ring, sharing);
  if (kExperts || threadIdx.x != kConsumers) ptx::wait_for_launches();
  Cursor<kStages> at;
  if (threadIdx.x < kConsumers) {
    for_tiles<kTokens, kExperts>(outputs, [&](const Tile& tile) {
      typename Format::Sum d[kTokens / 2];
      multiply_all(outputs, d, [&](int32_t groups, auto& part) {
        multiply_chunks<Format>(ring, at, sharing, groups, part);
      });
      store_tile<Format>(outputs, tile, d);
    });
  } else if (threadIdx.x == kConsumers) {
    for_tiles<kTokens, kExperts>(outputs, [&](const Tile& tile) {
      produce<Format>(ring, at, sharing, work, tile, walk_all<Format>(outputs), !kExperts);
    });
  }
  sharing.leave();
}

template <typename Format, bool kExperts, int kTokens, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    linear_wgmma_kernel(const __grid_constant__ Work work) {
  if constexpr (ptx::kHasWgmma) {
    linear_block<Format, kExperts, kTokens, kStages>(work, Alone<kExperts>{});
  }
}

// Clusters of kPair tiles, of which the last may have no tokens.
template <typename Format, int kTokens, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    pair_wgmma_kernel(const __grid_constant__ Work work) {
  if constexpr (ptx::kHasWgmma) {
    const int rank = ptx::cluster_rank();
    const int32_t left = work.outputs.num_rows - static_cast<int32_t>(blockIdx.y) * kTokens;
    if (left <= 0) return ptx::wait_for_launches();
    const int blocks = rank > 0 || left > kTokens ? kPair : 1;
    linear_block<Format, false, kTokens, kStages>(work, Together<kPair>{rank, blocks});
  }
}

template <typename Format, int kTokens, int kStages>
__device__ __forceinline__ void segment_block(const Work& work) {
  using Stages = Ring<kTokens, kStages>;
  GPU_DYN_SHARED(Stages, ring);
  const Outputs& outputs = work.outputs;
  const auto segment = static_cast<int32_t>(blockIdx.y);
  const Walk walk = walk_segment(outputs, segment);
  const Tile tile{0, static_cast<int32_t>(blockIdx.x) * kOutputs, 0, outputs.num_rows};
  const Alone<false> alone;
  ptx::start_next_launch();
  initialize(ring, alone);
  Cursor<kStages> at;
  if (threadIdx.x == kConsumers) {
    return produce<Format>(ring, at, alone, work, tile, walk, true);
  }
  ptx::wait_for_launches();
  if (threadIdx.x > kConsumers) return;
  typename Format::Sum d[kTokens / 2];
  multiply_chunks<Format>(ring, at, alone, walk.left.end - walk.left.begin, d);
  store_segment(outputs, tile, segment, d);
}

// One segment of K a block, into the workspace.
template <typename Format, int kTokens, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    segment_wgmma_kernel(const __grid_constant__ Work work) {
  if constexpr (ptx::kHasWgmma) segment_block<Format, kTokens, kStages>(work);
}

constexpr int kFewStages = 6;
constexpr int kManyStages = 4;

constexpr bool takes_pairs(const Outputs& outputs) {
  return !has_experts(outputs) && outputs.num_rows > kManyTokens;
}

template <typename Format>
void start_pairs(Stream stream, const Work& work) {
  const int64_t pairs = ceil_div(work.outputs.num_rows, kPair * kManyTokens);
  gpu::launch(stream,
              {.blocks_x = ceil_div(work.outputs.n, kOutputs),
               .blocks_y = kPair * pairs,
               .threads = kThreads,
               .shared_bytes = sizeof(Ring<kManyTokens, kManyStages>),
               .cluster_blocks = kPair},
              pair_wgmma_kernel<Format, kManyTokens, kManyStages>,
              work);
}

template <typename Format>
void start(Stream stream, const Work& work) {
  if (takes_pairs(work.outputs)) return start_pairs<Format>(stream, work);
  launch_tiles<Work>(stream,
                     work,
                     {.threads = kThreads,
                      .overlaps = true,
                      .shared_bytes = {sizeof(Ring<kManyTokens, kManyStages>),
                                       sizeof(Ring<kFewTokens, kFewStages>)},
                      .linear = {linear_wgmma_kernel<Format, false, kManyTokens, kManyStages>,
                                 linear_wgmma_kernel<Format, false, kFewTokens, kFewStages>},
                      .experts = {linear_wgmma_kernel<Format, true, kManyTokens, kManyStages>,
                                  linear_wgmma_kernel<Format, true, kFewTokens, kFewStages>},
                      .segment = segment_wgmma_kernel<Format, kFewTokens, kFewStages>});
}

TensorMap matrix_map(const std::byte* data,
                     int32_t element_bytes,
                     int32_t columns,
                     int64_t rows,
                     int64_t stride,
                     int box) {
  return gpu::make_tensor_map({.data = data,
                               .element_bytes = element_bytes,
                               .rank = 2,
                               .sizes = {columns, rows},
                               .strides = {0, stride},
                               .box = {kChunkBytes / element_bytes, box},
                               .swizzle = Swizzle::k128});
}

// The same matrix of every expert.
TensorMap experts_map(const Matrices& matrices, int32_t element_bytes, const Outputs& outputs) {
  // Of one expert there is none, and a map has none of 0.
  const int64_t stride = std::max(outputs.expert_stride, outputs.n * matrices.weight_stride);
  return gpu::make_tensor_map({.data = matrices.weight,
                               .element_bytes = element_bytes,
                               .rank = 4,
                               .sizes = {matrices.k, outputs.n, outputs.experts.num_experts, 1},
                               .strides = {0, matrices.weight_stride, stride, stride},
                               .box = {kChunkBytes / element_bytes, kOutputs, 1, 1},
                               .swizzle = Swizzle::k128});
}

TensorMap blocks_map(const Matrices& matrices, int tokens) {
  return gpu::make_tensor_map(
      {.data = matrices.x,
       .element_bytes = 1,
       .rank = 4,
       .sizes = {kQuantGroup,
                 kActivationRows,
                 ceil_div(matrices.k, kQuantGroup),
                 ceil_div(matrices.x_rows, kActivationRows)},
       .strides = {0,
                   kQuantGroup,
                   activation_record_bytes(ActivationFormat::kInt8Token),
                   matrices.x_stride},
       .box = {kQuantGroup, kActivationRows, kSteps, tokens / kActivationRows},
       .swizzle = Swizzle::k32});
}

}  // namespace

void launch_wgmma(Stream stream, const Matrices& matrices, const Outputs& outputs) {
  const bool int8 = matrices.format == MatrixFormat::kInt8;
  const int32_t element_bytes = int8 ? 1 : 2;
  const int tokens = takes_few_tokens(outputs) ? kFewTokens : kManyTokens;
  Work work{.outputs = outputs, .weight = {}, .x = {}};
  work.weight = has_experts(outputs)
                    ? experts_map(matrices, element_bytes, outputs)
                    : matrix_map(matrices.weight,
                                 element_bytes,
                                 matrices.k,
                                 outputs.n,
                                 matrices.weight_stride,
                                 takes_pairs(outputs) ? Together<kPair>::kPartOutputs : kOutputs);
  if (int8) {
    work.x = blocks_map(matrices, tokens);
    return start<WgmmaInt8>(stream, work);
  }
  work.x = matrix_map(matrices.x, 2, matrices.k, matrices.x_rows, matrices.x_stride, tokens);
  if (matrices.format == MatrixFormat::kF16) return start<WgmmaF16>(stream, work);
  start<WgmmaBf16>(stream, work);
}

}  // namespace sluice::kernels::cuda
