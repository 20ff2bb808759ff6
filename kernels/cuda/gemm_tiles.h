// SPDX-License-Identifier: Apache-2.0
// Linear layers of weights in the CPU's tiles, for all activations. A warp has a segment of K; a
// block has all segments for some tiles of 16 outputs and some tokens. A warp copies its operands
// some groups of 32 ahead, weights as narrow as they lie and tokens, into a ring of its own. A
// lane's dword of 4 codes is its part of tensor-core instructions. `Numbers` holds the differences
// between activations: gemm_blocks.cu and gemm_blocks_half.cu have one each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/core/status.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weights.h"

namespace sluice::kernels::cuda {

inline constexpr int kTilesThreads = kSegments * 32;
inline constexpr int kPieceBytes = 16;  // bytes of a copy

struct TilesWork {
  Outputs outputs;
  Segments segments;
  int32_t k;
  int32_t num_tiles;
  const std::byte* weight;
  int64_t tile_bytes;
  const std::byte* x;
  int64_t x_stride;  // bytes, from 8 tokens to the next 8
};

__device__ __forceinline__ int32_t lane_of_warp() { return static_cast<int32_t>(threadIdx.x % 32); }

// The sums' treatment: they may be multiplied by the row's scale, in the head of its tile.
template <WeightFormat kFormat>
using TileSums = std::conditional_t<kLayoutOf<kFormat>.scales_folded_sums(), HeadSums, FloatSums>;

// Copies a group's record of the block's packed tile t, at most its last one; a warp calls it.
template <WeightFormat kFormat>
__device__ __forceinline__ void copy_record(
    std::byte* to, const TilesWork& work, const Tile& tile, int32_t t, int32_t group) {
  using Record = GroupRecord<kFormat>;
  const int32_t at = tile.output / kRowTile + t;
  const int64_t inside = at < work.num_tiles ? at : work.num_tiles - 1;
  const std::byte* const packed =
      of_expert(work.weight, work.outputs.expert_stride, tile.expert) + inside * work.tile_bytes;
  const GroupAt from = group_at<kFormat>(packed, group);
#pragma unroll
  for (int32_t first = 0; first < Record::kBytes; first += 32 * kPieceBytes) {
    const int32_t i = first + lane_of_warp() * kPieceBytes;
    if (i < Record::kBytes) gpu::ptx::cp_async_16(to + i, Record::source(from, i), kPieceBytes);
  }
}

// A warp's operands of a group: `kTiles` records of 16 outputs, and tokens by 8.
template <typename Numbers, int kTiles, int kTokens>
struct TilesStage {
  static constexpr int kTokenGroups = kTokens / kActivationRows;

  alignas(kPieceBytes) std::byte weight[kTiles][GroupRecord<Numbers::kFormat>::kBytes];
  alignas(kPieceBytes) std::byte x[kTokenGroups][Numbers::kTokenBytes];
};

// A warp's memory: the ring, and in its place, after all of the segment is multiplied, the sums.
template <typename Numbers, int kTiles, int kTokens, int kStages>
struct WarpMemory {
  using Stage = TilesStage<Numbers, kTiles, kTokens>;
  using Sums = float[kTokens][kTiles * kRowTile];
  static_assert(sizeof(Sums) <= kStages * sizeof(Stage));

  Stage ring[kStages];

  [[nodiscard]] __device__ __forceinline__ Sums& sums() { return *reinterpret_cast<Sums*>(ring); }
};

// One segment's groups of a block's tile on their way through a warp's ring.
template <typename Numbers, int kTiles, int kTokens, int kStages>
class TilesRing {
 public:
  using Memory = WarpMemory<Numbers, kTiles, kTokens, kStages>;
  using Stage = typename Memory::Stage;

  __device__ __forceinline__
  TilesRing(Memory& memory, const TilesWork& work, const Tile& tile, int32_t segment)
      : memory_(memory),
        work_(work),
        tile_(tile),
        next_(first_group(work, segment)),
        end_(static_cast<int32_t>(own(work, segment).end_group(work.k))) {
    for (int stage = 0; stage < kStages - 1; ++stage) copy(stage);
  }

  [[nodiscard]] __device__ __forceinline__ static int32_t num_groups(const TilesWork& work,
                                                                     int32_t segment) {
    return static_cast<int32_t>(own(work, segment).end_group(work.k)) - first_group(work, segment);
  }

  // Waits for the next group and returns its stage.
  __device__ __forceinline__ const Stage& advance() {
    gpu::ptx::cp_async_wait<kStages - 2>();
    __syncwarp();  // all lanes' copies are there; no lane reads the stage before
    copy(stage_ == 0 ? kStages - 1 : stage_ - 1);
    const Stage& stage = memory_.ring[stage_];
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    return stage;
  }

 private:
  [[nodiscard]] __device__ __forceinline__ static Segments own(const TilesWork& work,
                                                               int32_t segment) {
    return {work.segments.first + segment, 1};
  }

  [[nodiscard]] __device__ __forceinline__ static int32_t first_group(const TilesWork& work,
                                                                      int32_t segment) {
    return static_cast<int32_t>(own(work, segment).first_group(work.k));
  }

  // Issues a group of copies, empty past the last group of 32, so that both count alike.
  __device__ __forceinline__ void copy(int stage) {
    if (next_ < end_) {
      Stage& to = memory_.ring[stage];
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        copy_record<Numbers::kFormat>(to.weight[t], work_, tile_, t, next_);
#pragma unroll
      for (int g = 0; g < Stage::kTokenGroups; ++g) {
        const int32_t token = tile_.token + g * kActivationRows;
        if (token >= tile_.token_end) break;
        Numbers::copy_tokens(to.x[g], work_, token, tile_.token_end, next_);
      }
      ++next_;
    }
    gpu::ptx::cp_async_commit();
  }

  Memory& memory_;
  const TilesWork& work_;
  const Tile& tile_;
  int32_t next_;   // group to copy
  int32_t end_;    // the segment's
  int stage_ = 0;  // the next group's
};

// Multiplies a segment of the tile by one warp, into its memory.
template <typename Numbers, int kTiles, int kTokens, int kStages>
__device__ __forceinline__ void multiply_segment(
    WarpMemory<Numbers, kTiles, kTokens, kStages>& memory,
    const TilesWork& work,
    const Tile& tile,
    int32_t segment) {
  using Ring = TilesRing<Numbers, kTiles, kTokens, kStages>;
  constexpr int kTokenGroups = Ring::Stage::kTokenGroups;
  float acc[kTiles][kTokenGroups][4] = {};
  Ring ring(memory, work, tile, segment);
  for (int32_t left = Ring::num_groups(work, segment); left > 0; --left) {
    const typename Ring::Stage& stage = ring.advance();
    typename Numbers::Weights w[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) w[t] = Numbers::load_weights(stage.weight[t]);
#pragma unroll
    for (int g = 0; g < kTokenGroups; ++g) {
      if (tile.token + g * kActivationRows >= tile.token_end) break;
      const typename Numbers::Tokens x = Numbers::load_tokens(stage.x[g]);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) Numbers::add_group(w[t], x, acc[t][g]);
    }
  }
  gpu::ptx::cp_async_wait<0>();  // the groups left are empty
  __syncwarp();                  // no lane reads the ring, which the sums replace
  auto& sums = memory.sums();
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int g = 0; g < kTokenGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t output = t * kRowTile + lane_of_warp() / 4 + i / 2 * 8;
        sums[g * kActivationRows + lane_of_warp() % 4 * 2 + i % 2][output] =
            Numbers::segment_sum(acc[t][g][i]);
      }
    }
  }
}

template <typename Numbers, int kTiles, int kTokens, int kStages>
struct BlockMemory {
  WarpMemory<Numbers, kTiles, kTokens, kStages> of_segment[kSegments];
};

// The tiles of tokens of a block: all of an expert's rows, or one tile.
struct TokenTiles {
  int32_t expert;
  int32_t first;
  int32_t stop;  // the last tile begins before it
  int32_t end;   // one past the last row
};

template <int kTokens>
__device__ __forceinline__ TokenTiles token_tiles(const Outputs& outputs) {
  const auto block = static_cast<int32_t>(blockIdx.y);
  if (!has_experts(outputs)) {
    return {0, block * kTokens, block * kTokens + 1, outputs.num_rows};
  }
  const ExpertRows& experts = outputs.experts;
  if (block >= *experts.num_chosen) return {};
  const int32_t expert = experts.chosen[block];
  const int32_t first = experts.first[expert];
  const int32_t end = first + experts.count[expert];
  return {expert, first, end, end};
}

template <typename Numbers, int kTiles, int kTokens, int kStages>
__global__ void __launch_bounds__(kTilesThreads, 1)
    linear_tiles_kernel(const __grid_constant__ TilesWork work) {
  using Memory = BlockMemory<Numbers, kTiles, kTokens, kStages>;
  constexpr int32_t kTileOutputs = kTiles * kRowTile;
  GPU_DYN_SHARED(Memory, memory);
  gpu::ptx::start_next_launch();
  const Outputs& outputs = work.outputs;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t segment = thread / 32;
  const TokenTiles tiles = token_tiles<kTokens>(outputs);
  for (int32_t first = tiles.first; first < tiles.stop; first += kTokens) {
    const Tile tile{
        tiles.expert, static_cast<int32_t>(blockIdx.x) * kTileOutputs, first, tiles.end};
    if (segment < work.segments.count) {
      multiply_segment<Numbers, kTiles, kTokens, kStages>(
          memory.of_segment[segment], work, tile, segment);
    }
    __syncthreads();
    for (int32_t i = thread; i < kTokens * kTileOutputs; i += kTilesThreads) {
      const int32_t output = tile.output + i % kTileOutputs;
      const int32_t token = tile.token + i / kTileOutputs;
      if (output >= outputs.n || token >= tile.token_end) continue;
      float s[kSegments] = {};
#pragma unroll
      for (int j = 0; j < kSegments; ++j) {
        if (j < work.segments.count)
          s[j] = memory.of_segment[j].sums()[i / kTileOutputs][i % kTileOutputs];
      }
      finish<TileSums<Numbers::kFormat>>(
          outputs, fold_segments(s, work.segments.count), tile.expert, output, token);
    }
    __syncthreads();
  }
}

// Returns the work's fields that both kinds of activations have.
inline TilesWork tiles_work(const LinearMatrixArgs& args, const ExpertMatrices* experts) {
  const PackedWeight& weight = *args.weight;
  CHECK(!has_rows(weight.format));
  CHECK_EQ(args.segments.num_columns(weight.k), args.x.k);
  Outputs outputs = outputs_of(args, experts);
  outputs.heads = weight.data;
  outputs.block_bytes = packed_tile_bytes(weight.format, weight.stored_columns());
  return {.outputs = outputs,
          .segments = args.segments,
          .k = weight.k,
          .num_tiles = static_cast<int32_t>(ceil_div(weight.n, kRowTile)),
          .weight = first_of_k(weight),
          .tile_bytes = outputs.block_bytes,
          .x = static_cast<const std::byte*>(args.x.data),
          .x_stride = 0};
}

}  // namespace sluice::kernels::cuda
