// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted_prompt.h"

namespace sluice::kernels::test {
namespace {

using gpu::Swizzle;
using gpu::TensorMap;
namespace ptx = gpu::ptx;
using Shape = PromptShape;
using cuda::exp_of;
using cuda::higher_of;

constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;
constexpr int kStages = 2;
constexpr int kSteps = Shape::kDim / 16;  // steps of d, and of a tile's keys
constexpr int kTileBlocks = Shape::kTile / Shape::kSlots;
constexpr uint32_t kTileBytes = Shape::kTile * Shape::kDim * 2;
constexpr uint32_t kKeyRow = Shape::kSlots * 2;  // bytes of a d in a block of K
constexpr uint32_t kValueRow = Shape::kDim * 2;  // bytes of a key
constexpr uint32_t kAllLanes = 0xFFFFFFFFU;
constexpr float kLowest = -0x1.fffffep127F;
constexpr int kEnd = Shape::kPosition + Shape::kRows;  // end of the keys that some row sees
static_assert(Shape::kDim == 64 && Shape::kTile == 64 && Shape::kSlots == 16);

struct Memory {
  alignas(1024) std::byte k[kStages][kTileBytes];
  alignas(1024) std::byte v[kStages][kTileBytes];
  ptx::Mbarrier full[2][kStages];  // K's and V's
  ptx::Mbarrier empty[2][kStages];
};

struct Work {
  const uint16_t* q;
  const int32_t* table;
  float* out;
};

// A lane's values of its two rows.
struct Rows {
  uint32_t q[kSteps][4];
  float scores[32];
  uint32_t weights[kSteps][4];
  float o[32];
  float m[2];
  float l[2];
};

template <PromptBug kBug>
__device__ __forceinline__ void produce(Memory& memory,
                                        const TensorMap& k,
                                        const TensorMap& v,
                                        const Work& work) {
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    const int stage = tile % kStages;
    const int round = tile / kStages % 2;
    for (int values = 0; values < 2; ++values) {
      ptx::Mbarrier* const full = &memory.full[values][stage];
      const int parity = kBug == PromptBug::kWrongParity ? round : round ^ 1;
      ptx::mbar_wait(&memory.empty[values][stage], parity);
      const uint32_t bytes = kBug == PromptBug::kExpectOneBlockLess
                                 ? kTileBytes / kTileBlocks * (kTileBlocks - 1)
                                 : kTileBytes;
      ptx::mbar_arrive_expect_tx(full, bytes);
      for (int i = 0; i < kTileBlocks; ++i) {
        const int first = tile * Shape::kTile + i * Shape::kSlots;
        const int of_table =
            kBug == PromptBug::kBlockOfTheFirstKey ? tile * kTileBlocks : first / Shape::kSlots;
        const int32_t block = first < kEnd ? work.table[of_table] : Shape::kBlocks;
        const uint32_t to = static_cast<uint32_t>(i) * kTileBytes / kTileBlocks;
        ptx::tma_load_4d((values == 0 ? memory.k : memory.v)[stage] + to,
                         values == 0 ? &k : &v,
                         0,
                         0,
                         0,
                         block,
                         full);
      }
    }
  }
}

__device__ __forceinline__ void release(Memory& memory, int values, int tile) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbar_arrive(&memory.empty[values][tile % kStages]);
}

template <PromptBug kBug>
__device__ __forceinline__ void multiply_keys(Memory& memory, Rows& rows, int tile) {
  const int stage = tile % kStages;
  if (kBug != PromptBug::kNoFullWait) ptx::mbar_wait(&memory.full[0][stage], tile / kStages % 2);
  const uint32_t k = ptx::shared_address(memory.k[stage]);
  if (kBug != PromptBug::kNoWgmmaFence) ptx::wgmma_fence();
  constexpr bool kWide = kBug == PromptBug::kKeySwizzle;
  constexpr uint32_t kBlock =
      kBug == PromptBug::kBlocksOverlap ? kTileBytes / kTileBlocks / 2 : kTileBytes / kTileBlocks;
  for (uint32_t step = 0; step < kSteps; ++step) {
    ptx::wgmma_rows_bf16(rows.scores,
                         rows.q[step],
                         ptx::transposed_descriptor(k + step * 16 * kKeyRow,
                                                    kWide ? Swizzle::k64 : Swizzle::k32,
                                                    kWide ? 16 * kKeyRow : 8 * kKeyRow,
                                                    kBlock),
                         step > 0);
  }
  ptx::wgmma_commit();
  if (kBug == PromptBug::kReleaseBeforeWait) release(memory, 0, tile);
}

template <PromptBug kBug>
__device__ __forceinline__ void clear_unseen(Memory& memory, int tile) {
  if (kEnd >= (tile + 1) * Shape::kTile || kBug == PromptBug::kUnclearedTail) return;
  const auto thread = static_cast<int>(threadIdx.x);
  auto* const pieces = reinterpret_cast<float4*>(memory.v[tile % kStages]);
  for (int i = thread; i < static_cast<int>(kTileBytes) / 16; i += kConsumers) {
    if (tile * Shape::kTile + i / 8 >= kEnd) pieces[i] = float4{0, 0, 0, 0};
  }
  if (kBug != PromptBug::kNoProxyFence) ptx::fence_proxy_async();
  if (kBug != PromptBug::kNoBarrierAfterClear) ptx::bar_sync(1, kConsumers);
}

template <PromptBug kBug>
__device__ __forceinline__ void multiply_values(Memory& memory, Rows& rows, int tile) {
  const int stage = tile % kStages;
  ptx::mbar_wait(&memory.full[1][stage], tile / kStages % 2);
  clear_unseen<kBug>(memory, tile);
  const uint32_t v = ptx::shared_address(memory.v[stage]);
  ptx::wgmma_fence();
  for (uint32_t step = 0; step < kSteps; ++step) {
    const uint32_t at = kBug == PromptBug::kStepsOfEightKeys ? step * 1024 : step * 16 * kValueRow;
    ptx::wgmma_rows_bf16(rows.o,
                         rows.weights[step],
                         ptx::transposed_descriptor(v + at, Swizzle::k128, 8 * kValueRow, 0),
                         true);
  }
  ptx::wgmma_commit();
}

// Turns products into weights, beside the products with V of the tile before.
template <PromptBug kBug>
__device__ __forceinline__ void weigh(Rows& rows, int tile, float (&c)[2]) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  for (int h = 0; h < 2; ++h) {
    const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + 8 * h;
    float top = rows.m[h];
    for (int i = 2 * h; i < 32; i += i % 2 == 0 ? 1 : 3) {
      const int key = tile * Shape::kTile + i / 4 * 8 + lane % 4 * 2 + i % 2;
      const bool seen = key <= Shape::kPosition + row || kBug == PromptBug::kUnmaskedTail;
      if (!seen) rows.scores[i] = -__builtin_inff();
      top = higher_of(top, rows.scores[i]);
    }
    top = higher_of(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = higher_of(top, __shfl_xor_sync(kAllLanes, top, 2));
    c[h] = kBug == PromptBug::kNoRescale ? 1.0F : exp_of(__fsub_rn(rows.m[h], top));
    rows.m[h] = top;
    float sum = 0;
    for (int i = 2 * h; i < 32; i += i % 2 == 0 ? 1 : 3) {
      rows.scores[i] = exp_of(__fsub_rn(rows.scores[i], top));
      sum = __fadd_rn(sum, rows.scores[i]);
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2));
    rows.l[h] = __fmaf_rn(rows.l[h], c[h], sum);
  }
}

__device__ __forceinline__ void pack(Rows& rows) {
  for (int i = 0; i < 16; ++i) {
    rows.weights[i / 4][i % 4] = ptx::pack_bf16(rows.scores[2 * i], rows.scores[2 * i + 1]);
  }
}

template <PromptBug kBug>
__device__ __forceinline__ void consume(Memory& memory, Rows& rows) {
  multiply_keys<kBug>(memory, rows, 0);
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    if (tile == 0) {
      ptx::wgmma_wait<0>();
    } else if (kBug != PromptBug::kScoresBeforeWait) {
      ptx::wgmma_wait<1>();
    }
    if (kBug != PromptBug::kReleaseBeforeWait) release(memory, 0, tile);
    float c[2];
    weigh<kBug>(rows, tile, c);
    if (kBug == PromptBug::kPackBeforeWait) pack(rows);
    if (tile > 0) {
      ptx::wgmma_wait<0>();
      if (kBug != PromptBug::kReleaseOnce || tile > 1) release(memory, 1, tile - 1);
    }
    for (int i = 0; i < 32; ++i) rows.o[i] = __fmul_rn(rows.o[i], c[i % 4 / 2]);
    if (kBug != PromptBug::kPackBeforeWait) pack(rows);
    if (tile + 1 < Shape::kTiles) multiply_keys<kBug>(memory, rows, tile + 1);
    multiply_values<kBug>(memory, rows, tile);
  }
  ptx::wgmma_wait<0>();
}

__device__ __forceinline__ void begin(Memory& memory) {
  for (int i = 0; i < 2 * kStages; ++i) {
    ptx::mbar_init(&memory.full[i / kStages][i % kStages], 1);
    ptx::mbar_init(&memory.empty[i / kStages][i % kStages], kConsumers / 32);
  }
  ptx::fence_mbar_init();
}

template <PromptBug kBug>
__global__ void __launch_bounds__(kThreads, 1) prompt_kernel(const __grid_constant__ TensorMap k,
                                                             const __grid_constant__ TensorMap v,
                                                             const Work work) {
  GPU_DYN_SHARED(Memory, memory);
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) begin(memory);
  __syncthreads();
  if (thread >= kConsumers) {
    if (thread == kConsumers) produce<kBug>(memory, k, v, work);
    return;
  }
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const int column = thread % 4 * 2;
  Rows rows{.q = {}, .scores = {}, .weights = {}, .o = {}, .m = {kLowest, kLowest}, .l = {}};
  for (int i = 0; i < 4 * kSteps; ++i) {
    const int at = (row + i % 2 * 8) * Shape::kDim + i / 2 * 8 + column;
    rows.q[i / 4][i % 4] = *reinterpret_cast<const uint32_t*>(work.q + at);
  }
  consume<kBug>(memory, rows);
  for (int i = 0; i < 32; ++i) {
    const int h = i % 4 / 2;
    work.out[(row + 8 * h) * Shape::kDim + i / 4 * 8 + column + i % 2] =
        __fdiv_rn(rows.o[i], rows.l[h]);
  }
}

// [block][rows][columns] of bf16.
TensorMap blocks_map(const uint16_t* data, int32_t rows, int32_t columns, Swizzle swizzle) {
  const int64_t bytes = int64_t{rows} * columns * 2;
  return gpu::make_tensor_map({.data = data,
                               .element_bytes = 2,
                               .rank = 4,
                               .sizes = {columns, rows, 1, Shape::kBlocks},
                               .strides = {0, columns * 2, bytes, bytes},
                               .box = {columns, rows, 1, 1},
                               .swizzle = swizzle});
}

}  // namespace

std::vector<float> run_prompt(PromptBug bug,
                              const uint16_t* q,
                              const uint16_t* k,
                              const uint16_t* v,
                              const std::vector<int32_t>& table) {
  std::vector<float> out(Shape::kRows * Shape::kDim, -1.0F);
  const Work work{.q = q, .table = table.data(), .out = out.data()};
  const bool plain = bug == PromptBug::kMapSwizzle;
  const TensorMap of_k =
      blocks_map(k, Shape::kDim, Shape::kSlots, plain ? Swizzle::kNone : Swizzle::k32);
  const TensorMap of_v = blocks_map(v, Shape::kSlots, Shape::kDim, Swizzle::k128);
  const gpu::LaunchShape shape{.threads = kThreads, .shared_bytes = sizeof(Memory)};
  with_bug<PromptBug::kNoRescale>(bug, [&]<PromptBug kBug>() {
    gpu::launch(nullptr, shape, prompt_kernel<kBug>, of_k, of_v, work);
  });
  return out;
}

}  // namespace sluice::kernels::test
