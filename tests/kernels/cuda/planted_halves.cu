// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted_ring.h"
#include "tests/kernels/cuda/planted_segments.h"

namespace sluice::kernels::test {
namespace {

using gpu::TensorMap;
namespace ptx = gpu::ptx;
using Shape = SegmentsShape;

constexpr int kCopier = kRingConsumers;
constexpr int kStorers = kRingConsumers + 32;
constexpr int kStoringWarps = 2;
constexpr int kThreads = kStorers + 32 * kStoringWarps;
constexpr int kBlocks = 2;  // blocks; one of them has two tiles
constexpr int kHalf = Shape::kSegments / 2;
constexpr int kRowWords = Shape::kTileOutputs + 4;

struct alignas(1024) Memory {
  SegmentsRing ring;
  ptx::Mbarrier written;
  ptx::Mbarrier stored;
  float tile[Shape::kTokens][kRowWords];
};

struct Work {
  TensorMap x;
  TensorMap w;
  float* out;
};

template <typename F>
__device__ __forceinline__ void for_own_tiles(F f) {
  for (auto tile = static_cast<int>(blockIdx.x); tile < Shape::kTiles; tile += kBlocks) f(tile);
}

template <HalvesBug kBug>
__device__ __forceinline__ void copy(Memory& memory, const Work& work) {
  RingCursor at;
  for_own_tiles([&](int tile) {
    for (int segment = 0; segment < Shape::kSegments; ++segment, at.advance()) {
      const int parity = kBug == HalvesBug::kEmptyParity ? at.parity : at.parity ^ 1;
      ptx::mbar_wait(&memory.ring.empty[at.stage], parity);
      ptx::Mbarrier* const full = &memory.ring.full[at.stage];
      ptx::mbar_arrive_expect_tx(full, kRingWeightBytes + kRingXBytes);
      const int column = Shape::first_column(segment);
      ptx::tma_load_2d(memory.ring.w[at.stage], &work.w, column, tile * Shape::kTileOutputs, full);
      ptx::tma_load_2d(memory.ring.x[at.stage], &work.x, column, 0, full);
    }
  });
}

template <HalvesBug kBug>
class Chunks {
 public:
  __device__ __forceinline__ explicit Chunks(Memory& memory) : memory_(memory) {}

  __device__ __forceinline__ void begin_tile() {
    if (kBug == HalvesBug::kRingRestarts) at_ = {};
  }

  // d = the segment's chain, still in flight; everything before it is complete.
  __device__ __forceinline__ void multiply(int segment, float (&d)[4]) {
    ptx::mbar_wait(&memory_.ring.full[at_.stage], at_.parity);
    issue_steps(memory_.ring, at_.stage, 2 * Shape::num_groups(segment), false, d);
    if (kBug != HalvesBug::kFoldInFlight) ptx::wgmma_wait<1>();
    if (kBug == HalvesBug::kReleaseInFlight) before_ = at_.stage;
    release();
    before_ = at_.stage;
    at_.advance();
  }

  __device__ __forceinline__ void drain() {
    if (kBug != HalvesBug::kNoDrain) ptx::wgmma_wait<0>();
    if (kBug != HalvesBug::kReleaseInFlight) release();
    before_ = -1;
  }

 private:
  __device__ __forceinline__ void release() {
    if (before_ >= 0 && threadIdx.x % 32 == 0) ptx::mbar_arrive(&memory_.ring.empty[before_]);
  }

  Memory& memory_;
  RingCursor at_;
  int before_ = -1;
};

// A thread's passing of a value: it parks a half, joins the other and hands the tile on.
template <HalvesBug kBug>
class Passing {
 public:
  __device__ __forceinline__ explicit Passing(Memory& memory) : memory_(memory) {}

  __device__ __forceinline__ void set_next(bool is_last) {
    has_next_ = true;
    is_last_ = is_last;
  }

  __device__ __forceinline__ void pass_on(float (&value)[4]) {
    if (!has_next_) return;
    has_next_ = false;
    if (!parked_ && kBug != HalvesBug::kNoWaitForStored) {
      ptx::mbar_wait(&memory_.stored, stored_parity_);
      stored_parity_ ^= 1;
    }
    const auto thread = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 4; ++i) {
      float& word =
          memory_.tile[thread % 4 * 2 + i % 2][thread / 32 * 16 + thread % 32 / 4 + i / 2 * 8];
      const bool joins = parked_ && kBug != HalvesBug::kHalfNotJoined;
      word = joins ? __fadd_rn(word, value[i]) : value[i];
    }
    parked_ = !is_last_;
    if (parked_ && kBug != HalvesBug::kWrittenWhenParked) return;
    if (kBug != HalvesBug::kNoSyncBeforeWritten) __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbar_arrive(&memory_.written);
  }

 private:
  Memory& memory_;
  bool has_next_ = false;
  bool is_last_ = false;
  bool parked_ = false;
  int stored_parity_ = kBug == HalvesBug::kStoredParity ? 0 : 1;
};

template <HalvesBug kBug>
__device__ __forceinline__ void multiply_tiles(Memory& memory) {
  Chunks<kBug> chunks(memory);
  Passing<kBug> passing(memory);
  float value[4];
  float one[4];
  float two[4];
  for_own_tiles([&](int) {
    chunks.begin_tile();
    for (int first = 0; first < Shape::kSegments; first += kHalf) {
      chunks.multiply(first, two);
      passing.pass_on(value);
      chunks.multiply(first + 1, one);
      chunks.multiply(first + 2, value);
      for (int i = 0; i < 4; ++i) two[i] = __fadd_rn(two[i], one[i]);
      chunks.multiply(first + 3, one);
      chunks.drain();
      for (int i = 0; i < 4; ++i) {
        if (kBug == HalvesBug::kFoldInAChain) {
          value[i] = __fadd_rn(__fadd_rn(two[i], value[i]), one[i]);
        } else {
          value[i] = __fadd_rn(two[i], __fadd_rn(value[i], one[i]));
        }
      }
      passing.set_next(first + kHalf == Shape::kSegments);
    }
  });
  passing.pass_on(value);
}

template <HalvesBug kBug>
__device__ __forceinline__ void store_tiles(Memory& memory, const Work& work) {
  const auto warp = static_cast<int>(threadIdx.x - kStorers) / 32;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  int parity = 0;
  for_own_tiles([&](int tile) {
    if (kBug == HalvesBug::kTilesOutOfStep) tile = Shape::kTiles - 1 - tile;
    if (kBug != HalvesBug::kNoWaitForWritten) ptx::mbar_wait(&memory.written, parity);
    parity ^= 1;
    constexpr int kEach = kBug == HalvesBug::kRowsOfOneWarp ? 1 : kStoringWarps;
    for (int token = kEach == 1 ? 0 : warp; token < Shape::kTokens; token += kEach) {
      for (int i = lane; i < Shape::kTileOutputs; i += 32) {
        const int output = tile * Shape::kTileOutputs + i;
        if (output >= Shape::kOutputs) continue;
        work.out[token * Shape::kOutputs + output] = memory.tile[token][i];
      }
    }
    if (kBug != HalvesBug::kNoSyncBeforeStored) __syncwarp();
    if (lane == 0) ptx::mbar_arrive(&memory.stored);
  });
}

template <HalvesBug kBug>
__global__ void __launch_bounds__(kThreads, 1) halves_kernel(const __grid_constant__ Work work) {
  GPU_DYN_SHARED(Memory, memory);
  ptx::start_next_launch();
  if (threadIdx.x == 0) {
    init_ring(memory.ring, 1);
    ptx::mbar_init(&memory.written, kRingConsumerWarps);
    ptx::mbar_init(&memory.stored, kBug == HalvesBug::kStoredByOneWarp ? 1 : kStoringWarps);
    ptx::fence_mbar_init();
  }
  __syncthreads();
  const bool is_storer = threadIdx.x >= kStorers;
  if (kBug == HalvesBug::kStoreBeforeWait && is_storer) store_tiles<kBug>(memory, work);
  if (kBug != HalvesBug::kEndWithoutWait || threadIdx.x >= kRingConsumers) ptx::wait_for_launches();
  if (threadIdx.x < kRingConsumers) multiply_tiles<kBug>(memory);
  if (threadIdx.x == kCopier) copy<kBug>(memory, work);
  if (kBug != HalvesBug::kStoreBeforeWait && is_storer) store_tiles<kBug>(memory, work);
}

}  // namespace

std::vector<float> run_halves(HalvesBug bug,
                              const std::vector<uint16_t>& x,
                              const std::vector<uint16_t>& w) {
  std::vector<float> out(static_cast<size_t>(Shape::kTokens * Shape::kOutputs), -1.0F);
  const Work work{.x = segments_map(x, Shape::kTokens, Shape::kTokens),
                  .w = segments_map(w, Shape::kOutputs, Shape::kTileOutputs),
                  .out = out.data()};
  const gpu::LaunchShape shape{
      .blocks_x = kBlocks, .threads = kThreads, .shared_bytes = sizeof(Memory), .overlaps = true};
  with_bug<HalvesBug::kStoreBeforeWait>(
      bug, [&]<HalvesBug kBug>() { gpu::launch(nullptr, shape, halves_kernel<kBug>, work); });
  return out;
}

}  // namespace sluice::kernels::test
