// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted_codes.h"

namespace sluice::kernels::test {
namespace {

namespace ptx = gpu::ptx;
using Shape = CodesShape;

constexpr int kPiece = 16;
constexpr uint32_t kOnes = 0x3F803F80U;

struct Stage {
  alignas(kPiece) CodesGroup weights;
  alignas(kPiece) uint16_t x[2][Shape::kTokens][16];  // [step][token]
};

static_assert(sizeof(CodesGroup) % kPiece == 0);

struct WarpMemory {
  Stage ring[Shape::kStages];
};

struct Memory {
  WarpMemory of_warp[Shape::kWarps];
};

using Sums = float[Shape::kTokens][Shape::kTile];

__device__ __forceinline__ Sums& sums_of(WarpMemory& memory) {
  return *reinterpret_cast<Sums*>(memory.ring);
}

__device__ __forceinline__ int32_t lane_of_warp() { return static_cast<int32_t>(threadIdx.x % 32); }

__device__ __forceinline__ uint32_t twice(float exact) {
  const auto bits = static_cast<uint32_t>(__float_as_int(exact));
  return bits >> 16 | (bits & 0xFFFF0000U);
}

__device__ __forceinline__ void copy_group(Stage& to,
                                           const CodesGroup& group,
                                           const uint16_t* x,
                                           int32_t number) {
  auto* const weights = reinterpret_cast<std::byte*>(&to.weights);
  const auto* const from = reinterpret_cast<const std::byte*>(&group);
  constexpr auto kBytes = static_cast<int32_t>(sizeof(CodesGroup));
  for (int32_t i = lane_of_warp() * kPiece; i < kBytes; i += 32 * kPiece) {
    ptx::cp_async_16(weights + i, from + i, kPiece);
  }
  const int32_t token = lane_of_warp() / 4;
  const int32_t piece = lane_of_warp() % 4;
  const bool exists = token < Shape::kRows;
  const uint16_t* const row = exists ? x + token * Shape::kK + number * 32 + piece * 8 : x;
  ptx::cp_async_16(&to.x[piece / 2][token][piece % 2 * 8], row, exists ? kPiece : 0);
}

// Returns two codes, bits 3 to 0 and 19 to 16, less the zero point.
__device__ __forceinline__ uint32_t less_zero(uint32_t codes, float zero) {
  const uint32_t plain =
      ptx::fma_bf16x2((codes & 0x000F000FU) | 0x43004300U, kOnes, twice(-128.0F));
  return ptx::fma_bf16x2(plain, kOnes, twice(-zero));
}

template <CodesBug kBug>
__device__ __forceinline__ void load_weights(const Stage& stage,
                                             const CodesGroup& neighbour,
                                             uint32_t (&a)[2][4],
                                             float (&scale)[2]) {
  const int32_t lane = lane_of_warp();
  for (int h = 0; h < 2; ++h) {
    const int32_t output = lane / 4 + 8 * h;
    const int32_t at = kBug == CodesBug::kChunkOfTheNeighbour ? (lane + 1) % 4 : lane % 4;
    const int32_t of_scale = kBug == CodesBug::kScaleOfTheFirstHalf ? lane / 4 : output;
    const CodesGroup& scales =
        kBug == CodesBug::kScaleOfTheNeighbourGroup ? neighbour : stage.weights;
    const CodesGroup& zeros =
        kBug == CodesBug::kZeroOfTheNeighbourGroup ? neighbour : stage.weights;
    scale[h] = scales.scale[of_scale];
    float zero = __int2float_rn(zeros.zero[output]);
    if (kBug == CodesBug::kZeroMinusOne) zero = __fadd_rn(zero, -1.0F);
    if (kBug == CodesBug::kNoZero) zero = 0;
    for (int step = 0; step < 2; ++step) {
      const int nibble = kBug == CodesBug::kHighCodesFirst ? 1 - step : step;
      const uint32_t codes = stage.weights.codes[at][output] >> (4 * nibble);
      const bool swapped = kBug == CodesBug::kOddCodesFirst;
      a[step][h] = less_zero(swapped ? codes >> 8 : codes, zero);
      a[step][2 + h] = less_zero(swapped ? codes : codes >> 8, zero);
    }
  }
}

template <CodesBug kBug>
__device__ __forceinline__ void load_tokens(const Stage& stage, uint32_t (&b)[2][2]) {
  const int32_t lane = lane_of_warp();
  for (int step = 0; step < 2; ++step) {
    const auto* const four =
        reinterpret_cast<const uint32_t*>(&stage.x[step][lane / 4][lane % 4 * 4]);
    if (kBug == CodesBug::kTokensInOrder) {
      b[step][0] = four[0];
      b[step][1] = four[1];
    } else {
      b[step][0] = (four[0] & 0xFFFFU) | four[1] << 16;
      b[step][1] = four[0] >> 16 | (four[1] & 0xFFFF0000U);
    }
  }
}

// Adds the group's products to acc. `count`: the number of groups before it.
template <CodesBug kBug>
__device__ __forceinline__ void add_group(const Stage& stage,
                                          const CodesGroup& neighbour,
                                          int32_t count,
                                          float (&sums)[4],
                                          float (&acc)[4]) {
  uint32_t a[2][4];
  uint32_t b[2][2];
  float scale[2];
  load_weights<kBug>(stage, neighbour, a, scale);
  load_tokens<kBug>(stage, b);
  if (kBug == CodesBug::kNoPromotion) {
    // Weights with their scales are rounded to the nearest BF16.
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < 4; ++i) {
        const float low =
            __fmul_rn(__int_as_float(static_cast<int32_t>(a[step][i] << 16)), scale[i % 2]);
        const float high =
            __fmul_rn(__int_as_float(static_cast<int32_t>(a[step][i] & 0xFFFF0000U)), scale[i % 2]);
        a[step][i] = ptx::pack_bf16(low, high);
      }
      ptx::mma_bf16(acc, a[step], b[step][0], b[step][1]);
    }
    return;
  }
  for (int step = 0; step < 2; ++step) {
    ptx::mma_bf16(sums, a[step], b[step][0], b[step][1]);
    const bool ends = kBug == CodesBug::kPromotedByHalves || step == 1;
    if (!ends || (kBug == CodesBug::kPromotedByTwos && count % 2 == 0)) continue;
    for (int i = 0; i < 4; ++i) {
      acc[i] = __fmaf_rn(sums[i], scale[i / 2], acc[i]);
      sums[i] = 0;
    }
  }
}

template <CodesBug kBug>
__device__ __forceinline__ void multiply_segment(WarpMemory& memory,
                                                 const CodesGroup* groups,
                                                 const uint16_t* x) {
  const auto segment = static_cast<int32_t>(threadIdx.x / 32);
  int32_t next = Shape::first_group(segment);
  const int32_t begin = next;
  const int32_t end =
      Shape::first_group(segment + 1) - (kBug == CodesBug::kSegmentOneShort ? 1 : 0);
  const auto copy = [&](int stage) {
    if (next < end) copy_group(memory.ring[stage], groups[next], x, next);
    ++next;
    ptx::cp_async_commit();
  };
  for (int stage = 0; stage < Shape::kStages - 1; ++stage) copy(stage);
  float acc[4] = {};
  float sums[4] = {};
  for (int32_t group = begin; group < end; ++group) {
    const int at = (group - begin) % Shape::kStages;
    const int before = (at + Shape::kStages - 1) % Shape::kStages;
    if (kBug == CodesBug::kCopyBeforeSync) copy(before);
    if (kBug == CodesBug::kWaitTooWeak) {
      ptx::cp_async_wait<Shape::kStages - 1>();
    } else if (kBug == CodesBug::kCopyBeforeSync) {
      ptx::cp_async_wait<Shape::kStages - 1>();
    } else if (kBug != CodesBug::kNoWait) {
      ptx::cp_async_wait<Shape::kStages - 2>();
    }
    if (kBug != CodesBug::kNoSyncAfterWait) __syncwarp();
    if (kBug != CodesBug::kCopyBeforeSync) copy(before);
    const int used = kBug == CodesBug::kStageOfTheNext ? (at + 1) % Shape::kStages : at;
    const CodesGroup& neighbour = groups[group == begin ? group + 1 : group - 1];
    add_group<kBug>(memory.ring[used], neighbour, group - begin, sums, acc);
  }
  ptx::cp_async_wait<0>();
  __syncwarp();
  Sums& out = sums_of(memory);
  for (int i = 0; i < 4; ++i) {
    out[lane_of_warp() % 4 * 2 + i % 2][lane_of_warp() / 4 + i / 2 * 8] = acc[i];
  }
}

template <CodesBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    codes_kernel(const CodesGroup* groups, const uint16_t* x, float* out) {
  GPU_DYN_SHARED(Memory, memory);
  multiply_segment<kBug>(memory.of_warp[threadIdx.x / 32], groups, x);
  if (kBug != CodesBug::kNoBarrierBeforeFold) __syncthreads();
  for (auto i = static_cast<int32_t>(threadIdx.x); i < Shape::kRows * Shape::kTile;
       i += Shape::kThreads) {
    const int32_t token = i / Shape::kTile;
    const int32_t output = i % Shape::kTile;
    out[i] = __fadd_rn(sums_of(memory.of_warp[0])[token][output],
                       sums_of(memory.of_warp[1])[token][output]);
  }
}

}  // namespace

std::vector<float> run_codes(CodesBug bug, const CodesGroup* groups, const uint16_t* x) {
  std::vector<float> out(Shape::kRows * Shape::kTile, -1.0F);
  with_bug<CodesBug::kNoBarrierBeforeFold>(bug, [&]<CodesBug kBug>() {
    gpu::launch(nullptr,
                {.threads = Shape::kThreads, .shared_bytes = sizeof(Memory)},
                codes_kernel<kBug>,
                groups,
                x,
                out.data());
  });
  return out;
}

}  // namespace sluice::kernels::test
