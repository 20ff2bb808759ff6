// SPDX-License-Identifier: Apache-2.0
// What the linear layers by wgmma share: the differences between formats, a ring of stages that
// copying threads fill by TMA with chunks of 128 bytes of K, and the products of a warpgroup's 64
// outputs with a tile of tokens. gemm_split.cu, gemm_wide.cu and gemm_wgmma.cu use it.
#pragma once

#include "engine/core/status.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/ring.h"

namespace sluice::kernels::cuda {

inline constexpr uint32_t kAtomBytes = 8 * kChunkBytes;  // 8 rows with all of a chunk

// These structs are not in an unnamed namespace because nvcc warns of unused functions there, and
// code for other devices, whose kernels are empty, does not use them.
struct XInRows {
  __device__ __forceinline__ static void load_x(
      void* to, const gpu::TensorMap* map, int32_t group, int32_t token, gpu::ptx::Mbarrier* full) {
    gpu::ptx::tma_load_2d(to, map, group * kQuantGroup, token, full);
  }

  // x is [tokens][128 bytes].
  __device__ __forceinline__ static uint64_t x_descriptor(uint32_t x, int step) {
    const auto offset = static_cast<uint32_t>(step * kStepBytes);
    return gpu::ptx::matrix_descriptor(x + offset, gpu::Swizzle::k128, kAtomBytes);
  }
};

template <bool kBf16>
struct WgmmaHalf : FloatSums, XInRows {
  static constexpr int32_t kElementBytes = 2;
  static constexpr bool kIsPromoted = false;

  template <int kWords>
  __device__ __forceinline__ static void multiply(float (&d)[kWords],
                                                  uint64_t a,
                                                  uint64_t b,
                                                  bool accumulate) {
    if constexpr (kBf16) {
      gpu::ptx::wgmma_bf16(d, a, b, accumulate);
    } else {
      gpu::ptx::wgmma_f16(d, a, b, accumulate);
    }
  }
};

struct WgmmaBf16 : WgmmaHalf<true> {};

struct WgmmaF16 : WgmmaHalf<false> {};

struct WgmmaInt8Sums : Int8Sums {
  static constexpr int32_t kElementBytes = 1;
  static constexpr bool kIsPromoted = false;

  template <int kWords>
  __device__ __forceinline__ static void multiply(int32_t (&d)[kWords],
                                                  uint64_t a,
                                                  uint64_t b,
                                                  bool accumulate) {
    gpu::ptx::wgmma_s8(d, a, b, accumulate);
  }
};

// x in the records of kInt8Token. The copy engine takes about as long for 32 bytes of a record as
// for 128 bytes of a row.
struct WgmmaInt8 : WgmmaInt8Sums {
  __device__ __forceinline__ static void load_x(
      void* to, const gpu::TensorMap* map, int32_t group, int32_t token, gpu::ptx::Mbarrier* full) {
    gpu::ptx::tma_load_4d(to, map, 0, 0, group, token / kActivationRows, full);
  }

  // x is [blocks of 8 tokens][4 groups][8][32 bytes], like the records in global memory.
  __device__ __forceinline__ static uint64_t x_descriptor(uint32_t x, int step) {
    const auto offset = static_cast<uint32_t>(step * kActivationRows * kStepBytes);
    return gpu::ptx::matrix_descriptor(x + offset, gpu::Swizzle::k32, kAtomBytes);
  }
};

// x in rows, written by gemm_wide.cu before it multiplies.
struct WgmmaInt8Rows : WgmmaInt8Sums, XInRows {};

// FP8, whose chunks' sums are promoted (launch_linear_fp8). x is blocks of 8 rows, in shared memory
// rows of 128 bytes like XInRows's.
template <typename Sums>
struct WgmmaE4M3 : Sums {
  static constexpr int32_t kElementBytes = 1;
  static constexpr bool kIsPromoted = true;

  template <int kWords>
  __device__ __forceinline__ static void multiply(float (&d)[kWords],
                                                  uint64_t a,
                                                  uint64_t b,
                                                  bool accumulate) {
    gpu::ptx::wgmma_e4m3(d, a, b, accumulate);
  }

  __device__ __forceinline__ static void load_x(
      void* to, const gpu::TensorMap* map, int32_t group, int32_t token, gpu::ptx::Mbarrier* full) {
    gpu::ptx::tma_load_4d(to, map, group * kQuantGroup, 0, token / kActivationRows, 0, full);
  }

  __device__ __forceinline__ static uint64_t x_descriptor(uint32_t x, int step) {
    return XInRows::x_descriptor(x, step);
  }
};

struct WgmmaE4M3Rows : WgmmaE4M3<E4M3Sums> {};

struct E4M3BlockSums : FloatSums {
  static constexpr bool kEndsAtBlocks = true;
};

struct WgmmaE4M3Blocks : WgmmaE4M3<E4M3BlockSums> {};

// Calls f.operator()<Format>() with what multiplies such rows of x.
template <typename F>
void with_wgmma(ActivationFormat x, const F& f) {
  switch (x) {
    case ActivationFormat::kInt8Token:
      return f.template operator()<WgmmaInt8>();
    case ActivationFormat::kF16:
      return f.template operator()<WgmmaF16>();
    case ActivationFormat::kBF16:
      return f.template operator()<WgmmaBf16>();
    case ActivationFormat::kE4M3Token:
      return f.template operator()<WgmmaE4M3Rows>();
    case ActivationFormat::kE4M3Group:
      return f.template operator()<WgmmaE4M3Blocks>();
    default:
      SLUICE_UNREACHABLE("rows that no wgmma takes");
  }
}

inline constexpr int kWarpgroups = kOutputs / 64;
inline constexpr int kConsumers = 128 * kWarpgroups;  // the first threads of a block
inline constexpr int kConsumerWarps = kConsumers / 32;

// Shared memory. The ring must be the first member of a struct that is aligned to 1024.
template <int kTokens, int kStages>
struct Ring {
  std::byte weight[kStages][kOutputs * kChunkBytes];
  std::byte x[kStages][kTokens * kChunkBytes];
  gpu::ptx::Mbarrier full[kStages];
  gpu::ptx::Mbarrier empty[kStages];
};

struct RingWork {
  Together layers;
  gpu::TensorMap weight[kMostTogether];
  gpu::TensorMap x;
};

__device__ __forceinline__ bool is_first_lane() { return threadIdx.x % 32 == 0; }

// One thread calls it; fence_mbar_init and a barrier follow. `copiers` threads fill a stage,
// consumer warps release it: each arrives once, so none waits for another before it arrives.
template <int kTokens, int kStages>
__device__ __forceinline__ void init_ring(Ring<kTokens, kStages>& ring, int copiers = 1) {
  for (int stage = 0; stage < kStages; ++stage) {
    gpu::ptx::mbar_init(&ring.full[stage], copiers);
    gpu::ptx::mbar_init(&ring.empty[stage], kConsumerWarps);
  }
}

// d = (accumulate ? d : 0) + the products of the first kCount steps of the chunk in `stage`, as a
// group of wgmma that is not waited for.
template <typename Format, int kCount, int kTokens, int kStages, int kWords>
__device__ __forceinline__ void issue_steps(const Ring<kTokens, kStages>& ring,
                                            int stage,
                                            bool accumulate,
                                            typename Format::Sum (&d)[kWords]) {
  const auto rows = static_cast<uint32_t>(threadIdx.x / 128 * 64 * kChunkBytes);
  const uint32_t weight = gpu::ptx::shared_address(ring.weight[stage]) + rows;
  const uint32_t x = gpu::ptx::shared_address(ring.x[stage]);
  gpu::ptx::fence_registers(d);
  gpu::ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kCount; ++step) {
    const auto offset = static_cast<uint32_t>(step * kStepBytes);
    const uint64_t a = gpu::ptx::matrix_descriptor(weight + offset, gpu::Swizzle::k128, kAtomBytes);
    Format::multiply(d, a, Format::x_descriptor(x, step), accumulate || step > 0);
  }
  gpu::ptx::wgmma_commit();
}

// issue_steps() for a chunk's first `groups`; later groups belong to another segment.
template <typename Format, int kTokens, int kStages, int kWords>
__device__ __forceinline__ void issue_chunk(const Ring<kTokens, kStages>& ring,
                                            int stage,
                                            int32_t groups,
                                            bool accumulate,
                                            typename Format::Sum (&d)[kWords]) {
  constexpr int32_t kGroups = kChunkGroups<Format>;
  constexpr int kGroupSteps = kSteps / kGroups;
  if (groups >= kGroups) {
    issue_steps<Format, kSteps>(ring, stage, accumulate, d);
  } else if (kGroups == 2 || groups == 1) {
    issue_steps<Format, kGroupSteps>(ring, stage, accumulate, d);
  } else if (groups == 2) {
    issue_steps<Format, 2 * kGroupSteps>(ring, stage, accumulate, d);
  } else {
    issue_steps<Format, 3 * kGroupSteps>(ring, stage, accumulate, d);
  }
}

// The factors with which a thread adds a chunk's FP8 sums to those of its segment, for its words of
// a tile: with scales per 128 of K, products of its outputs' and tokens' scales.
template <typename Format, int kTokens>
class Promotion {
 public:
  static constexpr int kWords = kTokens / 2;

  __device__ __forceinline__ Promotion(const Outputs& outputs, const Tile& tile) {
    if constexpr (!Format::kEndsAtBlocks) return;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const float* const first = of_expert(outputs.weight_scale, outputs.expert_stride, tile.expert);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // An output that does not exist takes the scales of the last one.
      const int32_t output = tile.output + thread / 32 * 16 + thread % 32 / 4 + 8 * h;
      weight_[h] =
          first + (output < outputs.n ? output : outputs.n - 1) * outputs.weight_scale_stride;
    }
    x_ = outputs.heads + tile.token / kActivationRows * outputs.block_bytes +
         thread % 4 * 2 * sizeof(float);
    block_bytes_ = outputs.block_bytes;
    blocks_ = (tile.token_end - tile.token + kActivationRows - 1) / kActivationRows;
    skipped_ = static_cast<int32_t>(outputs.segments.first_group(outputs.k));
  }

  // Loads scales for `add` of the chunk that begins at `group`, early, while the products run.
  __device__ __forceinline__ void load(int32_t group) {
    if constexpr (!Format::kEndsAtBlocks) return;
    constexpr int64_t kScaleBytes = kActivationRows * sizeof(float);
    const int32_t block = (skipped_ + group) / kChunkGroups<Format>;
    of_output_[0] = weight_[0][block];
    of_output_[1] = weight_[1][block];
    const int64_t own = block - skipped_ / kChunkGroups<Format>;
    const std::byte* const from = x_ + own * kScaleBytes;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int64_t at = j < blocks_ ? j : blocks_ - 1;
      of_token_[j] = *reinterpret_cast<const Two*>(from + at * block_bytes_);
    }
  }

  __device__ __forceinline__ void add(const float (&sums)[kWords], float (&d)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (Format::kEndsAtBlocks) {
        const float factor = __fmul_rn(of_output_[i % 4 / 2], of_token_[i / 4].x[i % 2]);
        d[i] = __fmaf_rn(sums[i], factor, d[i]);
      } else {
        d[i] = __fadd_rn(d[i], sums[i]);
      }
    }
  }

 private:
  // Values of two neighbouring tokens.
  struct alignas(8) Two {
    float x[2];
  };

  const float* weight_[2];
  const std::byte* x_;
  int64_t block_bytes_;
  int32_t blocks_;
  int32_t skipped_;
  float of_output_[2];
  Two of_token_[kTokens / 8];
};

// d = the sums over `groups` from the ring's position on, chunk by chunk, each a chain of its own.
// The other warpgroup multiplies while this one adds.
template <typename Format, int kTokens, int kStages>
__device__ __forceinline__ void promote_chunks(Ring<kTokens, kStages>& ring,
                                               Cursor<kStages>& at,
                                               const Outputs& outputs,
                                               Promotion<Format, kTokens>& promotion,
                                               Groups groups,
                                               float (&d)[kTokens / 2]) {
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) d[i] = 0;
  for (; groups.begin < groups.end; at.advance()) {
    const int32_t own = chunk_groups<Format>(outputs, groups.begin);
    const int32_t left = groups.end - groups.begin;
    float sums[kTokens / 2];
    promotion.load(groups.begin);
    gpu::ptx::mbar_wait(&ring.full[at.stage], at.parity);
    issue_chunk<Format>(ring, at.stage, left < own ? left : own, false, sums);
    gpu::ptx::wgmma_wait<0>();
    gpu::ptx::fence_registers(sums);
    if (is_first_lane()) gpu::ptx::mbar_arrive(&ring.empty[at.stage]);
    promotion.add(sums, d);
    groups.begin += own;
  }
}

// d = the chain over `groups` from the ring's position on; 0 for none. One group of wgmma stays in
// flight, so that the tensor cores have the next chunk when they finish one.
template <typename Format, int kTokens, int kStages, int kWords>
__device__ __forceinline__ void chain_chunks(Ring<kTokens, kStages>& ring,
                                             Cursor<kStages>& at,
                                             int32_t groups,
                                             typename Format::Sum (&d)[kWords]) {
  if (groups == 0) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) d[i] = 0;
    return;
  }
  int before = -1;  // stage of the products in flight
  for (; groups > 0; groups -= kChunkGroups<Format>, at.advance()) {
    gpu::ptx::mbar_wait(&ring.full[at.stage], at.parity);
    issue_chunk<Format>(ring, at.stage, groups, before >= 0, d);
    gpu::ptx::wgmma_wait<1>();
    if (before >= 0 && is_first_lane()) gpu::ptx::mbar_arrive(&ring.empty[before]);
    before = at.stage;
  }
  gpu::ptx::wgmma_wait<0>();
  gpu::ptx::fence_registers(d);
  if (is_first_lane()) gpu::ptx::mbar_arrive(&ring.empty[before]);
}

// d = the value of `groups` of a tile, by the format, from the ring's position on.
template <typename Format, int kTokens, int kStages>
__device__ __forceinline__ void multiply_chunks(Ring<kTokens, kStages>& ring,
                                                Cursor<kStages>& at,
                                                const Outputs& outputs,
                                                Promotion<Format, kTokens>& promotion,
                                                const Groups& groups,
                                                typename Format::Sum (&d)[kTokens / 2]) {
  if constexpr (Format::kIsPromoted) {
    promote_chunks(ring, at, outputs, promotion, groups, d);
  } else {
    chain_chunks<Format>(ring, at, groups.end - groups.begin, d);
  }
}

// Returns the map of a tensor with `columns` of K. A share of K without a column (fewer groups than
// ranks) has no chunks: kernels do not read its map, which the copy engine would refuse.
inline gpu::TensorMap map_of(int32_t columns, const gpu::TensorMapShape& shape) {
  return columns == 0 ? gpu::TensorMap{} : gpu::make_tensor_map(shape);
}

// A matrix in rows, in boxes of a chunk of `box` rows.
inline gpu::TensorMap matrix_map(const std::byte* data,
                                 int32_t element_bytes,
                                 int32_t columns,
                                 int64_t rows,
                                 int64_t stride,
                                 int box) {
  return map_of(columns,
                {.data = data,
                 .element_bytes = element_bytes,
                 .rank = 2,
                 .sizes = {columns, rows},
                 .strides = {0, stride},
                 .box = {kChunkBytes / element_bytes, box},
                 .swizzle = gpu::Swizzle::k128});
}

// Activations of kInt8Token, in boxes of a chunk of `tokens` tokens.
inline gpu::TensorMap blocks_map(const Matrices& matrices, int tokens) {
  return map_of(matrices.k,
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
                 .swizzle = gpu::Swizzle::k32});
}

// Activations of e4m3, in boxes of a chunk of `tokens` tokens.
inline gpu::TensorMap e4m3_map(const Matrices& matrices, int tokens) {
  const int64_t row = e4m3_row_bytes(matrices.k);
  return map_of(matrices.k,
                {.data = matrices.x,
                 .element_bytes = 1,
                 .rank = 4,
                 .sizes = {row, kActivationRows, ceil_div(matrices.x_rows, kActivationRows), 1},
                 .strides = {0, row, matrices.x_stride, matrices.x_stride},
                 .box = {kChunkBytes, kActivationRows, tokens / kActivationRows, 1},
                 .swizzle = gpu::Swizzle::k128});
}

// x, in boxes of a chunk of `tokens` tokens.
inline gpu::TensorMap x_map(const Matrices& matrices, int tokens) {
  if (matrices.format == ActivationFormat::kInt8Token) return blocks_map(matrices, tokens);
  if (is_e4m3(matrices.format)) return e4m3_map(matrices, tokens);
  return matrix_map(matrices.x, 2, matrices.k, matrices.x_rows, matrices.x_stride, tokens);
}

inline int32_t num_tiles(std::span<const Layer> layers) {
  int64_t tiles = 0;
  for (const Layer& layer : layers) tiles += ceil_div(layer.outputs.n, kOutputs);
  return static_cast<int32_t>(tiles);
}

// A launch without experts; x in boxes of `tokens` tokens.
inline RingWork ring_work(std::span<const Layer> layers, int tokens) {
  RingWork work{};
  work.layers.count = static_cast<int32_t>(layers.size());
  work.layers.num_tiles = num_tiles(layers);
  for (size_t i = 0; i < layers.size(); ++i) {
    const Matrices& matrices = layers[i].matrices;
    work.layers.each[i] = layers[i].outputs;
    work.weight[i] = matrix_map(matrices.weight,
                                element_bytes(matrices.format),
                                matrices.k,
                                layers[i].outputs.n,
                                matrices.weight_stride,
                                kOutputs);
  }
  work.x = x_map(layers[0].matrices, tokens);
  return work;
}

// Launches without experts. launch_split takes every layer that takes_wide refuses.
bool takes_wide(std::span<const Layer> layers);
void launch_wide(gpu::Stream stream, std::span<const Layer> layers);
void launch_split(gpu::Stream stream, std::span<const Layer> layers);

}  // namespace sluice::kernels::cuda
