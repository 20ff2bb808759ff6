// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted_attention.h"

namespace sluice::kernels::test {
namespace {

namespace ptx = gpu::ptx;
using Shape = TilesShape;
using cuda::exp_of;
using cuda::higher_of;

constexpr int kSlots = 3;
constexpr int kWarps = Shape::kThreads / 32;
constexpr int kRowBytes = 64;  // bytes of a row of every matrix in shared memory
constexpr int kPieces = kRowBytes / 16;
constexpr uint32_t kAllLanes = 0xFFFFFFFFU;
constexpr float kLowest = -0x1.fffffep127F;
constexpr int kEnd = Shape::kPosition + Shape::kRows;  // end of the keys that some row sees
static_assert(Shape::kDim == Shape::kTile && Shape::kTile == 16 * kWarps);

struct Memory {
  alignas(128) std::byte slots[kSlots][Shape::kTile * kRowBytes];
  alignas(128) std::byte weights[Shape::kRows * kRowBytes];
  float tops[Shape::kRows][kWarps];
  float sums[Shape::kRows * 4][kWarps];
};

struct Work {
  const uint16_t* q;
  const uint16_t* k;
  const uint16_t* v;
  float* out;
};

__device__ __forceinline__ int offset_of(int row, int piece) {
  return row * kRowBytes + (piece ^ row / 2 % kPieces) * 16;
}

// Copies index 2 * tile, which is K, or the next one, V.
template <TilesBug kBug>
__device__ __forceinline__ void copy(Memory& memory, const Work& work, int slot, int index) {
  if (index < 2 * Shape::kTiles) {
    const int first_key = index / 2 * Shape::kTile;
    for (auto i = static_cast<int>(threadIdx.x); i < Shape::kTile * kPieces; i += Shape::kThreads) {
      const int row = i / kPieces;
      const int column = i % kPieces * 8;
      const bool keys = index % 2 == 0;
      const int key = first_key + (keys ? column : row);
      const uint16_t* const from =
          keys ? work.k + row * Shape::kKeys + key : work.v + key * Shape::kDim + column;
      const bool seen = key < kEnd || kBug == TilesBug::kNoZeroFill;
      ptx::cp_async_16(&memory.slots[slot][offset_of(row, i % kPieces)], from, seen ? 16 : 0);
    }
  }
  ptx::cp_async_commit();
}

// Waits for the next index and returns its slot.
template <TilesBug kBug>
__device__ __forceinline__ const std::byte* next(Memory& memory, const Work& work, int index) {
  const int free = (index + kSlots - 1) % kSlots;
  if (kBug == TilesBug::kCopyBeforeBarrier) copy<kBug>(memory, work, free, index + kSlots - 1);
  if (kBug == TilesBug::kWaitTooWeak || kBug == TilesBug::kCopyBeforeBarrier) {
    ptx::cp_async_wait<kSlots - 1>();  // right with one group more
  } else if (kBug != TilesBug::kNoWait) {
    ptx::cp_async_wait<kSlots - 2>();
  }
  if (kBug != TilesBug::kNoBarrierAfterWait) __syncthreads();
  if (kBug != TilesBug::kCopyBeforeBarrier) copy<kBug>(memory, work, free, index + kSlots - 1);
  const bool stale = kBug == TilesBug::kStaleSlot && index == 7;
  return memory.slots[(stale ? index - 2 : index) % kSlots];
}

template <TilesBug kBug>
__device__ __forceinline__ void load_columns(uint32_t (&b)[4],
                                             const std::byte* rows,
                                             int row,
                                             int piece) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int at = row + lane / 8 % 2 * 8 + lane % 8;
  const int column = piece + lane / 16;
  const bool plain = kBug == TilesBug::kReadWithoutSwizzle;
  const std::byte* const from =
      rows + (plain ? at * kRowBytes + column * 16 : offset_of(at, column));
  if (kBug == TilesBug::kNotTransposed) {
    ptx::ldmatrix_x4(b, from);
  } else {
    ptx::ldmatrix_x4_trans(b, from);
  }
}

// Loads q as A for two steps of K, straight from memory.
__device__ __forceinline__ void load_queries(const Work& work, uint32_t (&q)[2][4]) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  for (int i = 0; i < 8; ++i) {
    const int row = lane / 4 + i % 2 * 8;
    const int column = i / 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2;
    q[i / 4][i % 4] = *reinterpret_cast<const uint32_t*>(work.q + row * Shape::kDim + column);
  }
}

// The joined partitions so far.
struct Total {
  float m[2];
  float l[2];
  float o[2][4];
};

__device__ __forceinline__ void join(Total& total,
                                     const float (&m)[2],
                                     const float (&l)[2],
                                     const float (&o)[2][4]) {
  for (int h = 0; h < 2; ++h) {
    const float both = higher_of(total.m[h], m[h]);
    const float keep = exp_of(__fsub_rn(total.m[h], both));
    const float add = exp_of(__fsub_rn(m[h], both));
    total.m[h] = both;
    total.l[h] = __fmaf_rn(l[h], add, __fmul_rn(total.l[h], keep));
    for (int i = 0; i < 4; ++i) {
      float& sum = total.o[i / 2][2 * h + i % 2];
      sum = __fmaf_rn(o[i / 2][2 * h + i % 2], add, __fmul_rn(sum, keep));
    }
  }
}

template <TilesBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1) tiles_kernel(const Work work) {
  GPU_DYN_SHARED(Memory, memory);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const int row = lane / 4;  // the lane has row + 8 as well
  for (int i = 0; i < kSlots - 1; ++i) copy<kBug>(memory, work, i, i);
  uint32_t q[2][4];
  load_queries(work, q);
  float m[2];
  float l[2];
  float o[2][4];
  Total total{.m = {kLowest, kLowest}, .l = {}, .o = {}};
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    constexpr int kFirst = kBug == TilesBug::kPartitionOneLate ? 1 : 0;
    if (tile == 0 || tile % Shape::kPartitionTiles == kFirst) {
      for (int i = 0; i < 8; ++i) o[i / 4][i % 4] = 0;
      for (int h = 0; h < 2; ++h) {
        m[h] = kLowest;
        l[h] = 0;
      }
    }
    const std::byte* const k = next<kBug>(memory, work, 2 * tile);
    float s[2][4] = {};
    for (int step = 0; step < 2; ++step) {
      uint32_t b[4];
      load_columns<kBug>(b, k, 16 * step, 2 * warp);
      ptx::mma_bf16(s[0], q[step], b[0], b[1]);
      ptx::mma_bf16(s[1], q[step], b[2], b[3]);
    }
    float c[2];
    for (int h = 0; h < 2; ++h) {
      float top = kLowest;
      for (int i = 0; i < 4; ++i) {
        const int key = tile * Shape::kTile + 16 * warp + i / 2 * 8 + lane % 4 * 2 + i % 2;
        const int end = Shape::kPosition + row + 8 * h + 1;
        float& score = s[i / 2][2 * h + i % 2];
        if (key >= end && kBug != TilesBug::kUnmaskedTail) score = -__builtin_inff();
        top = higher_of(top, score);
      }
      top = higher_of(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = higher_of(top, __shfl_xor_sync(kAllLanes, top, 2));
      if (lane % 4 == 0) memory.tops[row + 8 * h][warp] = top;
    }
    if (kBug != TilesBug::kNoBarrierAfterTops) __syncthreads();
    for (int h = 0; h < 2; ++h) {
      const float before = m[h];
      for (int w = 0; w < kWarps; ++w) m[h] = higher_of(m[h], memory.tops[row + 8 * h][w]);
      c[h] = kBug == TilesBug::kNoRescale ? 1.0F : exp_of(__fsub_rn(before, m[h]));
    }
    const auto share = [&] {
      for (int h = 0; h < 2; ++h) {
        float sum = 0;
        for (int half = 0; half < 2; ++half) {
          const float low = exp_of(__fsub_rn(s[half][2 * h], m[h]));
          const float high = exp_of(__fsub_rn(s[half][2 * h + 1], m[h]));
          sum = __fadd_rn(__fadd_rn(sum, low), high);
          auto* const to = memory.weights + offset_of(row + 8 * h, 2 * warp + half) + lane % 4 * 4;
          *reinterpret_cast<uint32_t*>(to) = ptx::pack_bf16(low, high);
        }
        memory.sums[(row + 8 * h) * 4 + lane % 4][warp] = sum;
      }
    };
    if (kBug != TilesBug::kWeightsAfterBarrier) share();
    const std::byte* const v = next<kBug>(memory, work, 2 * tile + 1);
    if (kBug == TilesBug::kWeightsAfterBarrier) share();
    for (int i = 0; i < 8; ++i) o[i / 4][i % 4] = __fmul_rn(o[i / 4][i % 4], c[i % 4 / 2]);
    for (int step = 0; step < 2; ++step) {
      uint32_t a[4];
      uint32_t b[4];
      const int at = lane / 8 % 2 * 8 + lane % 8;
      ptx::ldmatrix_x4(a, memory.weights + offset_of(at, 2 * step + lane / 16));
      load_columns<kBug>(b, v, 16 * step, 2 * warp);
      ptx::mma_bf16(o[0], a, b[0], b[1]);
      ptx::mma_bf16(o[1], a, b[2], b[3]);
    }
    for (int h = 0; h < 2; ++h) {
      const float(&sums)[kWarps] = memory.sums[(row + 8 * h) * 4 + lane % 4];
      float sum = kBug == TilesBug::kSumOfOneWarp ? sums[0] : __fadd_rn(sums[0], sums[1]);
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 1));
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2));
      l[h] = __fmaf_rn(l[h], c[h], sum);
    }
    const bool last = (tile + 1) % Shape::kPartitionTiles == kFirst || tile + 1 == Shape::kTiles;
    if (last) join(total, m, l, o);
  }
  for (int i = 0; i < 8; ++i) {
    const int h = i % 4 / 2;
    const int d = 16 * warp + i / 4 * 8 + lane % 4 * 2 + i % 2;
    work.out[(row + 8 * h) * Shape::kDim + d] = __fdiv_rn(total.o[i / 4][i % 4], total.l[h]);
  }
}

}  // namespace

std::vector<float> run_tiles(TilesBug bug,
                             const uint16_t* q,
                             const uint16_t* k,
                             const uint16_t* v) {
  std::vector<float> out(Shape::kRows * Shape::kDim, -1.0F);
  const Work work{.q = q, .k = k, .v = v, .out = out.data()};
  const gpu::LaunchShape shape{.threads = Shape::kThreads, .shared_bytes = sizeof(Memory)};
  with_bug<TilesBug::kSumOfOneWarp>(
      bug, [&]<TilesBug kBug>() { gpu::launch(nullptr, shape, tiles_kernel<kBug>, work); });
  return out;
}

}  // namespace sluice::kernels::test
