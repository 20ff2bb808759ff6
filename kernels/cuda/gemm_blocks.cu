// SPDX-License-Identifier: Apache-2.0
// Linear layers of weights in blocks (Q4_0 to MXFP4) times int8 activations with the CPU's bits: a
// group of 32 is one instruction of int8 tensor cores, whose exact sums go into the tree of
// kernels/gemm.h in fp32. A packed tile is read as it lies: its dwords of 4 codes are the lanes'
// parts of the instruction, so that codes go from memory to registers once and through no shared
// memory. A warp has a segment of K, a block all of them.
#include "engine/core/status.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weights.h"

namespace sluice::kernels::cuda {
namespace {

namespace ptx = gpu::ptx;

constexpr int kBlockThreads = kSegments * 32;
constexpr int32_t kRecordBytes = activation_record_bytes(ActivationFormat::kInt8);

struct BlockWork {
  Outputs outputs;
  Segments segments;
  int32_t k;
  int32_t num_tiles;
  const std::byte* weight;
  int64_t tile_bytes;
  const std::byte* x;
  int32_t x_groups;
};

// What a lane has of a group of 16 outputs: those `lane / 4` and 8 further on.
template <WeightFormat kFormat>
struct WeightGroup {
  uint32_t a[4];  // as ptx::mma_s8 takes it
  GroupScales scales[2];
};

template <WeightFormat kFormat>
__device__ __forceinline__ WeightGroup<kFormat> load_group(const std::byte* tile, int32_t group) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const GroupAt at = group_at<kFormat>(tile, group);
  const auto* const registers = reinterpret_cast<const uint32_t*>(at.codes);
  WeightGroup<kFormat> w;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int32_t output = lane / 4 + 8 * h;
    const auto load = [&](int32_t r) { return registers[r * kRowTile + output]; };
    w.a[h] = chunk_of<kFormat>(lane % 4, load);
    w.a[2 + h] = chunk_of<kFormat>(lane % 4 + 4, load);
    w.scales[h] = load_scales<kFormat>(at, output);
  }
  return w;
}

// Of a group of 8 tokens: as mma_s8 takes them, and the scales of the two that the lane has sums
// of.
struct TokenGroup {
  uint32_t b[2];
  float scale[2];
  float term[2][2];  // t_a by token and half; [0] of the whole group
};

template <WeightFormat kFormat>
__device__ __forceinline__ TokenGroup load_tokens(const std::byte* record) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto* const codes = reinterpret_cast<const uint32_t*>(record) + lane / 4 * 8 + lane % 4;
  const std::byte* const tail = record + kActivationRows * kQuantGroup;
  const auto* const floats = reinterpret_cast<const float*>(tail) + lane % 4 * 2;
  const auto* const sums = reinterpret_cast<const int32_t*>(tail) + lane % 4 * 2;
  TokenGroup x{{codes[0], codes[4]}, {floats[0], floats[1]}, {}};
  if constexpr (kHasMin<kFormat>) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if constexpr (kHalves<kFormat>) {
        const int32_t first = sums[3 * kActivationRows + c];
        const int32_t second = sums[2 * kActivationRows + c] - first;
        x.term[c][0] = __fmul_rn(__int2float_rn(first), x.scale[c]);
        x.term[c][1] = __fmul_rn(__int2float_rn(second), x.scale[c]);
      } else {
        x.term[c][0] = floats[kActivationRows + c];
      }
    }
  }
  return x;
}

// The terms of a group, or of half of it, in the tree's order.
template <WeightFormat kFormat>
__device__ __forceinline__ void add_sums(const WeightGroup<kFormat>& w,
                                         const TokenGroup& x,
                                         const int32_t (&isum)[4],
                                         int half,
                                         float* acc) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const GroupScales& scales = w.scales[i / 2];
    const float scale = __fmul_rn(scales.scale[half], x.scale[i % 2]);
    acc[i] = __fmaf_rn(__int2float_rn(isum[i]), scale, acc[i]);
    if constexpr (kHasMin<kFormat>) {
      acc[i] = __fmaf_rn(scales.minimum[half], x.term[i % 2][half], acc[i]);
    }
  }
}

template <WeightFormat kFormat>
__device__ __forceinline__ void add_group(const WeightGroup<kFormat>& w,
                                          const TokenGroup& x,
                                          float* acc) {
  if constexpr (!kHalves<kFormat>) {
    int32_t isum[4] = {};
    ptx::mma_s8(isum, w.a, x.b[0], x.b[1]);
    add_sums<kFormat>(w, x, isum, 0, acc);
  } else {
    int32_t low[4] = {};
    int32_t high[4] = {};
    const uint32_t first[4] = {w.a[0], w.a[1], 0, 0};
    const uint32_t second[4] = {0, 0, w.a[2], w.a[3]};
    ptx::mma_s8(low, first, x.b[0], x.b[1]);
    ptx::mma_s8(high, second, x.b[0], x.b[1]);
    add_sums<kFormat>(w, x, low, 0, acc);
    add_sums<kFormat>(w, x, high, 1, acc);
  }
}

// A block's tile of outputs and tokens, in packed tiles and groups of 8 tokens.
template <int kTiles, int kTokens>
struct BlockShape {
  static constexpr int kOutputs = kTiles * kRowTile;
  static constexpr int kTokenGroups = kTokens / kActivationRows;

  // By segment.
  float sums[kSegments][kTokens][kOutputs];
};

// A segment of the tile by one warp: acc of packed tile t and token group g at [t][g][4].
template <WeightFormat kFormat, int kTiles, int kTokens>
__device__ __forceinline__ void multiply_segment(
    const BlockWork& work,
    const Tile& tile,
    int32_t segment,
    float (&acc)[kTiles][BlockShape<kTiles, kTokens>::kTokenGroups][4]) {
  constexpr int kTokenGroups = BlockShape<kTiles, kTokens>::kTokenGroups;
  const Segments own{work.segments.first + segment, 1};
  const auto end = static_cast<int32_t>(own.end_group(work.k));
  const auto skipped = static_cast<int32_t>(work.segments.first_group(work.k));
  const std::byte* weight[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int32_t at = tile.output / kRowTile + t;
    const int64_t inside = at < work.num_tiles ? at : work.num_tiles - 1;
    weight[t] =
        of_expert(work.weight, work.outputs.expert_stride, tile.expert) + inside * work.tile_bytes;
  }
  const std::byte* const x =
      work.x + int64_t{tile.token / kActivationRows} * work.x_groups * kRecordBytes;
#pragma unroll 2
  for (auto group = static_cast<int32_t>(own.first_group(work.k)); group < end; ++group) {
    WeightGroup<kFormat> w[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) w[t] = load_group<kFormat>(weight[t], group);
#pragma unroll
    for (int g = 0; g < kTokenGroups; ++g) {
      if (tile.token + g * kActivationRows >= tile.token_end) break;
      const int64_t record = int64_t{g} * work.x_groups + (group - skipped);
      const TokenGroup tokens = load_tokens<kFormat>(x + record * kRecordBytes);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) add_group<kFormat>(w[t], tokens, acc[t][g]);
    }
  }
}

// acc to where every thread finds it.
template <int kTiles, int kTokens>
__device__ __forceinline__ void store_sums(
    float (&sums)[kTokens][kTiles * kRowTile],
    const float (&acc)[kTiles][BlockShape<kTiles, kTokens>::kTokenGroups][4]) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int g = 0; g < BlockShape<kTiles, kTokens>::kTokenGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t output = t * kRowTile + lane / 4 + i / 2 * 8;
        sums[g * kActivationRows + lane % 4 * 2 + i % 2][output] = acc[t][g][i];
      }
    }
  }
}

template <WeightFormat kFormat, bool kExperts, int kTiles, int kTokens>
__global__ void __launch_bounds__(kBlockThreads, 1)
    linear_blocks_kernel(const __grid_constant__ BlockWork work) {
  using Shape = BlockShape<kTiles, kTokens>;
  GPU_DYN_SHARED(Shape, shared);
  ptx::start_next_launch();
  const Outputs& outputs = work.outputs;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t segment = thread / 32;
  for_tiles<kTokens, kExperts, Shape::kOutputs>(outputs, [&](const Tile& tile) {
    if (segment < work.segments.count) {
      float acc[kTiles][Shape::kTokenGroups][4] = {};
      multiply_segment<kFormat, kTiles, kTokens>(work, tile, segment, acc);
      store_sums<kTiles, kTokens>(shared.sums[segment], acc);
    }
    __syncthreads();
    for (int32_t i = thread; i < kTokens * Shape::kOutputs; i += kBlockThreads) {
      const int32_t output = tile.output + i % Shape::kOutputs;
      const int32_t token = tile.token + i / Shape::kOutputs;
      if (output >= outputs.n || token >= tile.token_end) continue;
      float s[kSegments] = {};
#pragma unroll
      for (int j = 0; j < kSegments; ++j) {
        if (j < work.segments.count) {
          s[j] = shared.sums[j][i / Shape::kOutputs][i % Shape::kOutputs];
        }
      }
      finish<FloatSums>(outputs, fold_segments(s, work.segments.count), tile.expert, output, token);
    }
    __syncthreads();
  });
}

template <WeightFormat kFormat, int kTiles, int kTokens>
void start(Stream stream, const BlockWork& work) {
  using Shape = BlockShape<kTiles, kTokens>;
  const bool experts = has_experts(work.outputs);
  const gpu::LaunchShape shape{
      .blocks_x = ceil_div(work.outputs.n, Shape::kOutputs),
      .blocks_y = experts ? max_chosen(work.outputs) : ceil_div(work.outputs.num_rows, kTokens),
      .threads = kBlockThreads,
      .shared_bytes = sizeof(Shape)};
  gpu::launch(stream,
              shape,
              experts ? linear_blocks_kernel<kFormat, true, kTiles, kTokens>
                      : linear_blocks_kernel<kFormat, false, kTiles, kTokens>,
              work);
}

// One tile of outputs for few tokens, so that there are blocks for all of the device; two for many,
// so that activations are read half as often.
template <WeightFormat kFormat>
void start(Stream stream, const BlockWork& work) {
  constexpr int kMany = 32;
  if (takes_few_tokens(work.outputs)) return start<kFormat, 1, kFewTokens>(stream, work);
  start<kFormat, 2, kMany>(stream, work);
}

}  // namespace

void launch_linear_blocks(Stream stream,
                          const LinearMatrixArgs& args,
                          const ExpertMatrices* experts) {
  const PackedWeight& weight = *args.weight;
  CHECK(args.x.format == ActivationFormat::kInt8);
  CHECK_EQ(args.segments.num_columns(weight.k), args.x.k);
  if (args.x.num_rows == 0) return;
  const BlockWork work{.outputs = outputs_of(args, experts),
                       .segments = args.segments,
                       .k = weight.k,
                       .num_tiles = static_cast<int32_t>(ceil_div(weight.n, kRowTile)),
                       .weight = first_of_k(weight),
                       .tile_bytes = packed_tile_bytes(weight.format, weight.stored_columns()),
                       .x = static_cast<const std::byte*>(args.x.data),
                       .x_groups = static_cast<int32_t>(ceil_div(args.x.k, kQuantGroup))};
  with_block_format(weight.format, [&]<WeightFormat kFormat>() { start<kFormat>(stream, work); });
}

}  // namespace sluice::kernels::cuda
