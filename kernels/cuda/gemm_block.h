// SPDX-License-Identifier: Apache-2.0
// Functions that all kernels of linear layers share: gemm_split.cu, gemm_wide.cu and gemm_wgmma.cu
// for Hopper, gemm_mma.cu for everything else. A tile is 128 outputs and some tokens, with tokens
// on the N side, so that one decoded token costs a tile of 8. gemm.cu chooses among the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/types.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"

namespace sluice::kernels::cuda {

inline constexpr int kChunkBytes = 128;  // bytes of K in a stage
inline constexpr int kStepBytes = 32;    // bytes of K in one instruction
inline constexpr int kSteps = kChunkBytes / kStepBytes;
inline constexpr int kOutputs = 128;  // outputs of a block
inline constexpr int kFewTokens = 8;  // tokens of a tile
inline constexpr int kManyTokens = 64;
inline constexpr int kSplitTokens = 128;  // most rows whose segments are dealt out on Hopper

// Bytes of a number of x, and of the weights that it is multiplied with.
constexpr int32_t element_bytes(ActivationFormat x) {
  return x == ActivationFormat::kBF16 || x == ActivationFormat::kF16 ? 2 : 1;
}

// The places of a layer's matrices.
struct Matrices {
  ActivationFormat format;  // x's; weights in rows are the same numbers, with scales alike
  int32_t k;
  const std::byte* weight;
  int64_t weight_stride;  // bytes
  const std::byte* x;     // INT8, e4m3: the first block of 8 rows' codes
  int64_t x_stride;       // bytes from row to row; INT8, e4m3: from block to block
  int32_t x_rows;
};

// The epilogue: where sums go and what is applied to them.
struct Outputs {
  int32_t k;  // the whole layer's
  Segments segments;
  int32_t n;  // one expert's
  int32_t num_rows;
  const float* bias;  // by output, like scales; the first expert's
  bool add;
  float* out;
  int64_t out_stride;
  // For mma.sync the sums of each segment, null where a block takes all segments. On Hopper: see
  // gemm_split.cu and gemm_wide.cu.
  void* workspace;
  uint32_t* arrivals;  // with a workspace: a launch's kMostArrivals counters
  // INT8, e4m3 and HeadSums only.
  const float* weight_scale;    // kE4M3Group: [n][weight_blocks], counted from all of K
  int64_t weight_scale_stride;  // floats
  const std::byte* heads;       // activation blocks' scales of rows; HeadSums: tiles'
  int64_t block_bytes;
  ExpertRows experts;     // without experts: one matrix for all rows
  int64_t expert_stride;  // bytes from one expert's data to the next one's
};

constexpr bool has_experts(const Outputs& outputs) { return outputs.experts.num_experts > 0; }

// Returns the most experts that can have rows at once.
constexpr int64_t max_chosen(const Outputs& outputs) {
  const int64_t blocks = ceil_div(outputs.num_rows, kActivationRows);
  return outputs.experts.num_experts < blocks ? outputs.experts.num_experts : blocks;
}

// Returns an expert's data, given the first expert's.
template <typename T>
__device__ __forceinline__ const T* of_expert(const T* of_first, int64_t stride, int32_t expert) {
  return reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(of_first) + expert * stride);
}

// Counters at the start of every workspace, which are 0 except while a launch of gemm_split.cu
// runs.
inline constexpr int32_t kMostArrivals = 4096;
static_assert(kMostArrivals * sizeof(uint32_t) == kArrivalBytes);

// The most bytes for sums of all segments of a layer whose segments go to several blocks. A layer
// that would need more has enough blocks in whole tiles.
inline constexpr int64_t kMostSumsBytes = int64_t{64} << 20;

constexpr int64_t sums_bytes(int64_t num_rows, int64_t n) {
  return int64_t{kSegments} * num_rows * n * int64_t{sizeof(float)};
}

// Bytes of 8 rows of kE4M3Token or kE4M3Group.
constexpr int64_t e4m3_block_bytes(ActivationFormat format, int64_t k) {
  return e4m3_head_bytes(format, k) + kActivationRows * e4m3_row_bytes(k);
}

// Bytes of 8 rows of kInt8Token.
constexpr int64_t token_block_bytes(int64_t k) {
  return kTokenHeadBytes +
         ceil_div(k, kQuantGroup) * activation_record_bytes(ActivationFormat::kInt8Token);
}

// Values of consecutive equal shares of the segments as Format::Sum, each [num_rows][n].
struct Parts {
  const void* parts[kSegments];
  int32_t count;  // a power of two
};

// Joins parts to the value of outputs.segments, and applies `finish`.
void launch_fold(gpu::Stream stream,
                 ActivationFormat x,
                 const Outputs& outputs,
                 const Parts& parts);
// launch_fold() for float sums of tiles with heads (HeadSums).
void launch_fold_heads(gpu::Stream stream, const Outputs& outputs, const Parts& parts);

struct Layer {
  Matrices matrices;
  Outputs outputs;
};

// Layers without experts that multiply the same x, as one launch. They differ in n, bias, out and
// out_stride, scales and workspace. Tiles of 128 outputs are numbered over all layers in order.
struct Together {
  int32_t count;
  int32_t num_tiles;
  Outputs each[kMostTogether];
};

// A tile's layer, and its first output there.
struct Place {
  int32_t layer;
  int32_t output;
};

__device__ __forceinline__ Place place_of(const Together& layers, int32_t tile) {
  int32_t layer = 0;
  while (layer + 1 < layers.count) {
    const auto own = static_cast<int32_t>(ceil_div(layers.each[layer].n, kOutputs));
    if (tile < own) break;
    tile -= own;
    ++layer;
  }
  return {layer, tile * kOutputs};
}

// Launches one layer, or several without experts, as described by Together.
void launch_wgmma(gpu::Stream stream, std::span<const Layer> layers);
void launch_mma(gpu::Stream stream, const Matrices& matrices, const Outputs& outputs);
// launch_linear_gated() of launch.h, on Hopper.
bool launch_gated(gpu::Stream stream, std::span<const Layer> layers, const GateMulArgs& gate);

// Returns Outputs from the fields that all kinds of arguments have.
template <typename Args>
Outputs outputs_of(
    const Args& args, int32_t num_rows, int32_t n, int32_t k, const ExpertMatrices* experts) {
  Outputs outputs{};
  outputs.k = k;
  outputs.segments = args.segments;
  outputs.n = n;
  outputs.num_rows = num_rows;
  outputs.bias = args.bias;
  outputs.add = args.epilogue == Epilogue::kAdd;
  outputs.out = args.out;
  outputs.out_stride = args.out_stride;
  if (experts != nullptr) {
    outputs.experts = experts->rows;
    outputs.expert_stride = experts->stride;
  }
  return outputs;
}

inline Outputs outputs_of(const LinearMatrixArgs& args, const ExpertMatrices* experts) {
  return outputs_of(args, args.x.num_rows, args.weight->n, args.weight->k, experts);
}

inline Matrices matrices_of(const LinearHalfArgs& args) {
  return {.format = args.format,
          .k = static_cast<int32_t>(args.segments.num_columns(args.k)),
          .weight =
              reinterpret_cast<const std::byte*>(args.weight + args.segments.first_column(args.k)),
          .weight_stride = args.weight_stride * 2,
          .x = reinterpret_cast<const std::byte*>(args.x),
          .x_stride = args.x_stride * 2,
          .x_rows = args.num_rows};
}

__device__ __forceinline__ float sum_of(float a, float b) { return __fadd_rn(a, b); }

// Adds with wrap-around, like the device, since buffers that nothing has written may be added.
__device__ __forceinline__ int32_t sum_of(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

// Returns the scale of a row of kInt8Token or kE4M3Token.
__device__ __forceinline__ float row_scale(const Outputs& outputs, int32_t token) {
  return reinterpret_cast<const float*>(
      outputs.heads + token / kActivationRows * outputs.block_bytes)[token % kActivationRows];
}

// The formats' treatment of a sum over the segments, whatever multiplies. kIsScaled: it is
// multiplied by the scales of its row and output. kEndsAtBlocks: no chunk goes past a multiple of
// 128 of all of K.
struct FloatSums {
  using Sum = float;
  static constexpr bool kInOnePiece = false;
  static constexpr bool kIsScaled = false;
  static constexpr bool kEndsAtBlocks = false;

  __device__ __forceinline__ static float value(
      const Outputs&, float sum, int32_t, int32_t, int32_t) {
    return sum;
  }
};

// Sums of tiles that begin with scales of their rows (outputs.heads).
struct HeadSums : FloatSums {
  __device__ __forceinline__ static float value(
      const Outputs& outputs, float sum, int32_t expert, int32_t output, int32_t) {
    if (!outputs.segments.are_all()) return sum;
    const std::byte* const tile = of_expert(outputs.heads, outputs.expert_stride, expert) +
                                  output / kRowTile * outputs.block_bytes;
    return __fmul_rn(sum, reinterpret_cast<const float*>(tile)[output % kRowTile]);
  }
};

// Sums of codes, of type Value.
template <typename Value>
struct CodeSums {
  using Sum = Value;
  static constexpr bool kIsScaled = true;
  static constexpr bool kEndsAtBlocks = false;

  __device__ __forceinline__ static float value(
      const Outputs& outputs, Sum sum, int32_t expert, int32_t output, int32_t token) {
    if (!outputs.segments.are_all()) return unscaled(sum);
    return scaled(sum,
                  row_scale(outputs, token),
                  of_expert(outputs.weight_scale, outputs.expert_stride, expert)[output]);
  }

  // Returns a share's value.
  __device__ __forceinline__ static float unscaled(float sum) { return sum; }

  __device__ __forceinline__ static float unscaled(int32_t sum) { return __int_as_float(sum); }

  __device__ __forceinline__ static float scaled(float sum, float of_row, float of_output) {
    return __fmul_rn(__fmul_rn(sum, of_row), of_output);
  }

  __device__ __forceinline__ static float scaled(int32_t sum, float of_row, float of_output) {
    return scaled(__int2float_rn(sum), of_row, of_output);
  }
};

struct Int8Sums : CodeSums<int32_t> {
  static constexpr bool kInOnePiece = true;
};

struct E4M3Sums : CodeSums<float> {
  static constexpr bool kInOnePiece = false;
};

// A block's outputs from `output` on of one matrix, and its tokens: as many from `token` on, before
// `token_end`, as its tile has.
struct Tile {
  int32_t expert;
  int32_t output;
  int32_t token;
  int32_t token_end;
};

// Calls f(tile) for a block's tiles: one tile of the launch, or all of an expert's rows.
template <int kTokens, bool kExperts, int kBlockOutputs = kOutputs, typename F>
__device__ __forceinline__ void for_tiles(const Outputs& outputs, F f) {
  const auto output = static_cast<int32_t>(blockIdx.x) * kBlockOutputs;
  if constexpr (kExperts) {
    const ExpertRows& experts = outputs.experts;
    if (static_cast<int32_t>(blockIdx.y) >= *experts.num_chosen) return;
    const int32_t expert = experts.chosen[blockIdx.y];
    const int32_t first = experts.first[expert];
    const int32_t end = first + experts.count[expert];
    for (int32_t token = first; token < end; token += kTokens) {
      f(Tile{expert, output, token, end});
    }
  } else {
    f(Tile{0, output, static_cast<int32_t>(blockIdx.y) * kTokens, outputs.num_rows});
  }
}

// Returns the value of a subtree of `count` segments, a power of two: s[0 .. count).
template <typename Sum>
__device__ __forceinline__ Sum fold_segments(Sum (&s)[kSegments], int32_t count) {
#pragma unroll
  for (int width = 1; width < kSegments; width *= 2) {
    if (width >= count) break;
#pragma unroll
    for (int i = 0; i < kSegments; i += 2 * width) s[i] = sum_of(s[i], s[i + width]);
  }
  return s[0];
}

// Groups of 32 columns of x.
struct Groups {
  int32_t begin;
  int32_t end;
};

__device__ __forceinline__ Groups groups_of(const Outputs& outputs, const Segments& segments) {
  const int64_t skipped = outputs.segments.first_group(outputs.k);
  return {static_cast<int32_t>(segments.first_group(outputs.k) - skipped),
          static_cast<int32_t>(segments.end_group(outputs.k) - skipped)};
}

// Returns the groups of one segment, counted from x's first.
__device__ __forceinline__ Groups groups_of(const Outputs& outputs, int32_t segment) {
  return groups_of(outputs, Segments{outputs.segments.first + segment, 1});
}

// The next part of K that a block copies, in the order in which it multiplies. A chunk holds groups
// of one segment alone: a segment's last chunk may be less than full.
struct Walk {
  Groups left;      // in the current segment; none: the end
  int32_t segment;  // the next one
};

__device__ __forceinline__ void skip_empty_segments(const Outputs& outputs, Walk& walk) {
  while (walk.left.begin >= walk.left.end && walk.segment < outputs.segments.count) {
    walk.left = groups_of(outputs, walk.segment++);
  }
}

__device__ __forceinline__ Walk walk_segment(const Outputs& outputs, int32_t segment) {
  return {groups_of(outputs, segment), outputs.segments.count};
}

// Returns the walk in multiply_all's order.
template <typename Format>
__device__ __forceinline__ Walk walk_all(const Outputs& outputs) {
  if constexpr (Format::kInOnePiece) {
    return {groups_of(outputs, outputs.segments), outputs.segments.count};
  }
  Walk walk{{0, 0}, 0};
  skip_empty_segments(outputs, walk);
  return walk;
}

template <typename Format>
inline constexpr int32_t kChunkGroups = kChunkBytes / Format::kElementBytes / kQuantGroup;

// Returns the most groups of a chunk that begins at `begin`, counted from x's first.
template <typename Format>
__device__ __forceinline__ int32_t chunk_groups(const Outputs& outputs, int32_t begin) {
  if constexpr (Format::kEndsAtBlocks) {
    static_assert(kChunkGroups<Format> * kQuantGroup == kE4M3GroupColumns);
    const auto skipped = static_cast<int32_t>(outputs.segments.first_group(outputs.k));
    return kChunkGroups<Format> - (skipped + begin) % kChunkGroups<Format>;
  }
  return kChunkGroups<Format>;
}

template <typename Format>
__device__ __forceinline__ void take_chunk(const Outputs& outputs, Walk& walk) {
  walk.left.begin += chunk_groups<Format>(outputs, walk.left.begin);
  skip_empty_segments(outputs, walk);
}

// d = level + d.
template <int kWords>
__device__ __forceinline__ void fold(const float (&level)[kWords], float (&d)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) d[i] = __fadd_rn(level[i], d[i]);
}

template <int kWords>
__device__ __forceinline__ void keep(const float (&d)[kWords], float (&level)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) level[i] = d[i];
}

// d = the sum over all segments. multiply(groups, d): d = the chain over the next groups. INT8 is
// exact and goes in one piece; otherwise segments fold like a binary counter: at most three sums
// wait.
template <int kWords, typename Multiply>
__device__ __forceinline__ void multiply_all(const Outputs& outputs,
                                             int32_t (&d)[kWords],
                                             Multiply multiply) {
  multiply(groups_of(outputs, outputs.segments), d);
}

template <int kWords, typename Multiply>
__device__ __forceinline__ void multiply_all(const Outputs& outputs,
                                             float (&d)[kWords],
                                             Multiply multiply) {
  float one[kWords];
  float two[kWords];
  float four[kWords];
#pragma unroll
  for (int segment = 0; segment < kSegments; ++segment) {
    if (segment >= outputs.segments.count) break;
    multiply(groups_of(outputs, segment), d);
    if (segment % 2 == 0) {
      keep(d, one);
      continue;
    }
    fold(one, d);
    if (segment % 4 == 1) {
      keep(d, two);
      continue;
    }
    fold(two, d);
    if (segment == 3) {
      keep(d, four);
    } else {
      fold(four, d);
    }
  }
}

// Turns the sum over the segments into the output.
template <typename Format>
__device__ __forceinline__ void finish(const Outputs& outputs,
                                       typename Format::Sum sum,
                                       int32_t expert,
                                       int32_t output,
                                       int32_t token) {
  float y = Format::value(outputs, sum, expert, output, token);
  if (outputs.bias != nullptr) {
    y = __fadd_rn(y, of_expert(outputs.bias, outputs.expert_stride, expert)[output]);
  }
  float* const out = outputs.out + token * outputs.out_stride + output;
  *out = outputs.add ? __fadd_rn(*out, y) : y;
}

// The output and token of a thread's word i of a tile's sums: a warp has 16 outputs, and
// d[4 j + 2 h + c] is output lane / 4 + 8 h and token 8 j + 2 (lane % 4) + c.
struct SumPlace {
  int32_t output;
  int32_t token;
  bool is_inside;  // inside of the layer and of the tile's tokens
};

__device__ __forceinline__ SumPlace sum_place(const Outputs& outputs, const Tile& tile, int i) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t output = tile.output + thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
  const int32_t token = tile.token + thread % 4 * 2 + i / 4 * 8 + i % 2;
  return {output, token, output < outputs.n && token < tile.token_end};
}

// Calls f(output, token, sum) for this thread's accumulators inside of the tile.
template <typename Sum, int kWords, typename F>
__device__ __forceinline__ void for_sums(const Outputs& outputs,
                                         const Tile& tile,
                                         const Sum (&d)[kWords],
                                         F f) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const SumPlace place = sum_place(outputs, tile, i);
    if (place.is_inside) f(place.output, place.token, d[i]);
  }
}

template <typename Format, int kWords>
__device__ __forceinline__ void store_tile(const Outputs& outputs,
                                           const Tile& tile,
                                           const typename Format::Sum (&d)[kWords]) {
  for_sums(outputs, tile, d, [&](int32_t output, int32_t token, auto sum) {
    finish<Format>(outputs, sum, tile.expert, output, token);
  });
}

// Stores a segment's sums to the workspace [segment][token][output].
template <typename Sum, int kWords>
__device__ __forceinline__ void store_segment(const Outputs& outputs,
                                              const Tile& tile,
                                              int32_t segment,
                                              const Sum (&d)[kWords]) {
  auto* const partial =
      static_cast<Sum*>(outputs.workspace) + int64_t{segment} * outputs.num_rows * outputs.n;
  for_sums(outputs, tile, d, [&](int32_t output, int32_t token, Sum sum) {
    partial[int64_t{token} * outputs.n + output] = sum;
  });
}

// Whether a launch covers its rows by tiles of few tokens.
constexpr bool takes_few_tokens(const Outputs& outputs) {
  return outputs.num_rows <=
         kFewTokens * (has_experts(outputs) ? outputs.experts.num_experts : int64_t{1});
}

}  // namespace sluice::kernels::cuda
