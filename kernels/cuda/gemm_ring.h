// SPDX-License-Identifier: Apache-2.0
// What the linear layers by wgmma share: what differs between the formats, a ring of stages that
// copying threads fill by TMA with chunks of 128 bytes of K, and the products of a warpgroup's 64
// outputs with a tile of tokens. gemm_split.cu, gemm_wide.cu and gemm_wgmma.cu use it.
#pragma once

#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/ring.h"

namespace sluice::kernels::cuda {

inline constexpr uint32_t kAtomBytes = 8 * kChunkBytes;  // 8 rows with all of a chunk

// The formats have names outside of a file because nvcc complains of functions of its own that a
// file does not use, and code for other devices, whose kernels are empty, does not use these.
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

  template <int kWords>
  __device__ __forceinline__ static void multiply(int32_t (&d)[kWords],
                                                  uint64_t a,
                                                  uint64_t b,
                                                  bool accumulate) {
    gpu::ptx::wgmma_s8(d, a, b, accumulate);
  }
};

// x in the records of kInt8Token. The copy engine takes about as long for one of their 32 bytes as
// for 128 bytes of a row.
struct WgmmaInt8 : WgmmaInt8Sums {
  __device__ __forceinline__ static void load_x(
      void* to, const gpu::TensorMap* map, int32_t group, int32_t token, gpu::ptx::Mbarrier* full) {
    gpu::ptx::tma_load_4d(to, map, 0, 0, group, token / kActivationRows, full);
  }

  // x is [blocks of 8 tokens][4 groups][8][32 bytes], as the records are in global memory.
  __device__ __forceinline__ static uint64_t x_descriptor(uint32_t x, int step) {
    const auto offset = static_cast<uint32_t>(step * kActivationRows * kStepBytes);
    return gpu::ptx::matrix_descriptor(x + offset, gpu::Swizzle::k32, kAtomBytes);
  }
};

// x in rows, which gemm_wide.cu writes before it multiplies.
struct WgmmaInt8Rows : WgmmaInt8Sums, XInRows {};

inline constexpr int kWarpgroups = kOutputs / 64;
inline constexpr int kConsumers = 128 * kWarpgroups;  // the first threads of a block
inline constexpr int kConsumerWarps = kConsumers / 32;

// Shared memory; the struct that holds it is aligned to 1024, and the ring is its first member.
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

// By one thread; fence_mbar_init and a barrier follow. `copiers` threads fill a stage, consumer
// warps let go of it: each arrives once, so that none waits for another before it arrives.
template <int kTokens, int kStages>
__device__ __forceinline__ void init_ring(Ring<kTokens, kStages>& ring, int copiers = 1) {
  for (int stage = 0; stage < kStages; ++stage) {
    gpu::ptx::mbar_init(&ring.full[stage], copiers);
    gpu::ptx::mbar_init(&ring.empty[stage], kConsumerWarps);
  }
}

// d = (accumulate ? d : 0) + the products of the first kCount steps of the chunk at `stage`, as a
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

// issue_steps for a chunk's first `groups`; groups behind them are another segment's.
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

// d = the chain over `groups` from where the ring is; 0 for none. One group of wgmma stays in
// flight, so that the tensor cores have the next chunk when they are through with one.
template <typename Format, int kTokens, int kStages, int kWords>
__device__ __forceinline__ void multiply_chunks(Ring<kTokens, kStages>& ring,
                                                Cursor<kStages>& at,
                                                int32_t groups,
                                                typename Format::Sum (&d)[kWords]) {
  if (groups == 0) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) d[i] = 0;
    return;
  }
  int before = -1;  // the stage of the products that may still run
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

// What has `columns` of K. A share of K without a column, as where K has fewer groups than there
// are ranks, has no chunks: kernels do not read its map, and the copy engine refuses such a one.
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

// Activations of kInt8Token, in boxes of a chunk of `tokens`.
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

inline constexpr int32_t element_bytes(MatrixFormat format) {
  return format == MatrixFormat::kInt8 ? 1 : 2;
}

// x in boxes of a chunk of `tokens`.
inline gpu::TensorMap x_map(const Matrices& matrices, int tokens) {
  if (matrices.format == MatrixFormat::kInt8) return blocks_map(matrices, tokens);
  return matrix_map(matrices.x, 2, matrices.k, matrices.x_rows, matrices.x_stride, tokens);
}

inline int32_t num_tiles(std::span<const Layer> layers) {
  int64_t tiles = 0;
  for (const Layer& layer : layers) tiles += ceil_div(layer.outputs.n, kOutputs);
  return static_cast<int32_t>(tiles);
}

// A launch without experts: x in boxes of `tokens`.
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

// Both are without experts. launch_split takes whatever takes_wide does not want.
bool takes_wide(std::span<const Layer> layers);
void launch_wide(gpu::Stream stream, std::span<const Layer> layers);
void launch_split(gpu::Stream stream, std::span<const Layer> layers);

}  // namespace sluice::kernels::cuda
