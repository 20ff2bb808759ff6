// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted_products.h"

namespace sluice::kernels::test {
namespace {

using gpu::Swizzle;
using gpu::TensorMap;
namespace ptx = gpu::ptx;
using Shape = PairsShape;

constexpr int kStages = 3;
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;
constexpr int kWarps = kConsumers / 32;
constexpr int kHalf = Shape::kOutputs / 2;  // outputs that a block copies for both
constexpr uint32_t kRowBytes = 128;
constexpr uint32_t kAtom = 8 * kRowBytes;

struct Ring {
  alignas(1024) std::byte w[kStages][Shape::kOutputs * kRowBytes];
  alignas(1024) std::byte x[kStages][Shape::kTile * kRowBytes];
  ptx::Mbarrier full[kStages];
  ptx::Mbarrier empty[kStages];
};

__device__ __forceinline__ void cluster_sync() {
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

template <PairsBug kBug>
__device__ __forceinline__ void initialize(Ring& ring) {
  constexpr bool kOfOne =
      kBug == PairsBug::kEmptyOfOneBlock || kBug == PairsBug::kEmptyCountsOneBlock;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbar_init(&ring.full[stage], 1);
      ptx::mbar_init(&ring.empty[stage], kOfOne ? kWarps : 2 * kWarps);
    }
    if (kBug != PairsBug::kNoFenceAfterInit) ptx::fence_mbar_init();
  }
  if (kBug == PairsBug::kBlockBarrierAfterInit) {
    __syncthreads();
  } else if (kBug == PairsBug::kNoWaitAfterInit) {
    ptx::cluster_arrive();
    __syncthreads();
  } else {
    cluster_sync();
  }
}

template <PairsBug kBug>
__device__ __forceinline__ void produce(Ring& ring, const TensorMap& x, const TensorMap& w) {
  const int rank = ptx::cluster_rank();
  uint32_t bytes = (Shape::kOutputs + Shape::kTile) * kRowBytes;
  if (kBug == PairsBug::kExpectOneHalf) bytes -= kHalf * kRowBytes;
  uint16_t blocks = 0b11;
  if (kBug == PairsBug::kMaskOfItself) blocks = static_cast<uint16_t>(1 << rank);
  if (kBug == PairsBug::kMaskOfThePeer) blocks = static_cast<uint16_t>(2 >> rank);
  if (kBug == PairsBug::kMaskOfThree) blocks = 0b111;
  const int to = kBug == PairsBug::kHalfToTheSamePlace ? 0 : rank * kHalf;
  const int from = kBug == PairsBug::kHalfFromTheSamePlace ? 0 : rank * kHalf;
  for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
    const int stage = chunk % kStages;
    const int parity = chunk / kStages % 2 ^ 1;
    if (kBug == PairsBug::kWaitOfTheBlock) {
      ptx::mbar_wait(&ring.empty[stage], parity);
    } else {
      ptx::mbar_wait_cluster(&ring.empty[stage], parity);
    }
    ptx::Mbarrier* const full = &ring.full[stage];
    ptx::mbar_arrive_expect_tx(full, bytes);
    std::byte* const half = ring.w[stage] + to * static_cast<int>(kRowBytes);
    ptx::tma_load_multicast_2d(half, &w, chunk * 64, from, full, blocks);
    if (kBug == PairsBug::kTokensForBoth) {
      ptx::tma_load_multicast_2d(ring.x[stage], &x, chunk * 64, rank * Shape::kTile, full, 0b11);
    } else {
      ptx::tma_load_2d(ring.x[stage], &x, chunk * 64, rank * Shape::kTile, full);
    }
  }
}

template <PairsBug kBug>
__device__ __forceinline__ void release(ptx::Mbarrier* empty) {
  constexpr bool kOwn = kBug == PairsBug::kEmptyOfOneBlock || kBug == PairsBug::kNoArrivalAtThePeer;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (kOwn) {
    if (lane == 0) ptx::mbar_arrive(empty);
  } else if (kBug == PairsBug::kArrivalsAtOneBlock) {
    if (lane < 2) ptx::mbar_arrive_peer(ptx::peer_address(empty, 0));
  } else {
    if (lane < 2) ptx::mbar_arrive_peer(ptx::peer_address(empty, lane));
  }
}

template <PairsBug kBug>
__device__ __forceinline__ void consume(Ring& ring, int tokens, float* out) {
  float kept[4] = {};
  float d[4] = {};
  constexpr int kMiddle = Shape::kChunks / 2;  // two segments, folded at the end
  for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
    const int stage = chunk % kStages;
    if (chunk == kMiddle) {
      for (int i = 0; i < 4; ++i) kept[i] = d[i];
    }
    ptx::mbar_wait(&ring.full[stage], chunk / kStages % 2);
    const uint32_t w = ptx::shared_address(ring.w[stage]);
    const uint32_t x = ptx::shared_address(ring.x[stage]);
    if (kBug == PairsBug::kArriveBeforeTheProducts) release<kBug>(&ring.empty[stage]);
    ptx::wgmma_fence();
    for (uint32_t step = 0; step < 4; ++step) {
      ptx::wgmma_bf16(d,
                      ptx::matrix_descriptor(w + step * 32, Swizzle::k128, kAtom),
                      ptx::matrix_descriptor(x + step * 32, Swizzle::k128, kAtom),
                      (chunk != 0 && chunk != kMiddle) || step > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (kBug != PairsBug::kArriveBeforeTheProducts) release<kBug>(&ring.empty[stage]);
  }
  const auto thread = static_cast<int>(threadIdx.x);
  const int output = thread / 32 * 16 + thread % 32 / 4;
  for (int i = 0; i < 4; ++i) {
    const int token = static_cast<int>(blockIdx.y) * Shape::kTile + thread % 4 * 2 + i % 2;
    if (token >= tokens) continue;
    out[token * Shape::kOutputs + output + i / 2 * 8] = __fadd_rn(kept[i], d[i]);
  }
}

template <PairsBug kBug>
__global__ void __launch_bounds__(kThreads, 1) pairs_kernel(const __grid_constant__ TensorMap x,
                                                            const __grid_constant__ TensorMap w,
                                                            int tokens,
                                                            float* out) {
  GPU_DYN_SHARED(Ring, ring);
  initialize<kBug>(ring);
  if (threadIdx.x < kConsumers) {
    consume<kBug>(ring, tokens, out);
  } else if (threadIdx.x == kConsumers) {
    produce<kBug>(ring, x, w);
  }
  if (kBug == PairsBug::kNoWaitAfterInit) ptx::cluster_wait();
  if (kBug != PairsBug::kNoBarrierBeforeTheEnd) cluster_sync();
}

template <PairsBug kBug>
void start(const TensorMap& x, const TensorMap& w, float* out) {
  gpu::launch(
      nullptr,
      {.blocks_y = 2, .threads = kThreads, .shared_bytes = sizeof(Ring), .cluster_blocks = 2},
      pairs_kernel<kBug>,
      x,
      w,
      int{Shape::kTokens},
      out);
}

TensorMap matrix(const std::vector<uint16_t>& data, int rows, int box) {
  return gpu::make_tensor_map({.data = data.data(),
                               .element_bytes = 2,
                               .rank = 2,
                               .sizes = {Shape::kK, rows},
                               .strides = {0, int64_t{Shape::kK} * 2},
                               .box = {64, box},
                               .swizzle = Swizzle::k128});
}

}  // namespace

std::vector<float> run_pairs(PairsBug bug,
                             const std::vector<uint16_t>& x,
                             const std::vector<uint16_t>& w) {
  std::vector<float> out(static_cast<size_t>(2 * Shape::kTile * Shape::kOutputs), -1.0F);
  const TensorMap x_map = matrix(x, Shape::kTokens, Shape::kTile);
  const TensorMap w_map = matrix(w, Shape::kOutputs, kHalf);
  with_bug<PairsBug::kNoBarrierBeforeTheEnd>(
      bug, [&]<PairsBug kBug>() { start<kBug>(x_map, w_map, out.data()); });
  return out;
}

}  // namespace sluice::kernels::test
