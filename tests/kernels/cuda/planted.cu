// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cuda/planted.h"

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted_products.h"

namespace sluice::kernels::test {
namespace {

using gpu::Swizzle;
using gpu::TensorMap;
namespace ptx = gpu::ptx;

constexpr int kThreads = 64;
constexpr int kRowsPerBlock = 2;
constexpr int kRows = 4;

__device__ __forceinline__ float folded(ReduceBug bug, float sum) {
  const uint32_t mask = bug == ReduceBug::kLaneOutsideItsMask ? 0x00FFU : 0xFFFFU;
  if (bug == ReduceBug::kShuffleAcrossTheMask) sum = __shfl_xor_sync(mask, sum, 16);
  for (int half = 8; half >= 1; half /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(mask, sum, half));
  return sum;
}

__device__ __forceinline__ float sum_of(ReduceBug bug, const float* row, int32_t n, int lane) {
  const int32_t end = bug == ReduceBug::kUnmaskedTail ? (n + 15) / 16 * 16 : n;
  float sum = 0;
  for (int32_t i = lane; i < end; i += 16) sum = __fadd_rn(sum, row[i]);
  return folded(bug, sum);
}

template <ReduceBug kBug>
__global__ void __launch_bounds__(kThreads, 1)
    reduce_kernel(const float* x, int32_t n, float* out) {
  GPU_DYN_SHARED_ARRAY(float, staged);
  GPU_SHARED(float, total, 1);
  GPU_SHARED(float, by_warp, kThreads / 32);
  const int thread = static_cast<int>(threadIdx.x);
  int64_t first = int64_t{blockIdx.x} * kRowsPerBlock;
  if (kBug == ReduceBug::kSplitOffByOne && first > 0) --first;
  for (int64_t row = first; row < first + kRowsPerBlock; ++row) {
    const int32_t end = kBug == ReduceBug::kSharedOffByOne ? n + 1 : n;
    for (int32_t i = thread; i < end; i += kThreads) staged[i] = i < n ? x[row * n + i] : 0.0F;
    if (kBug != ReduceBug::kNoBarrierAfterStaging) __syncthreads();
    if (thread < 16) {
      const float sum = sum_of(kBug, staged, n, thread);
      if (thread == 0) total[0] = sum;
      if (kBug == ReduceBug::kBarrierInBranch) __syncthreads();
    }
    if (kBug == ReduceBug::kNamedBarrierCount) {
      ptx::bar_sync(1, thread < 32 ? 32 : 64);
    } else if (kBug == ReduceBug::kExitedLaneInMask) {
      if (thread == 40) return;
      if (thread >= 32) __syncwarp();
      ptx::bar_sync(1, kThreads);
    } else if (kBug != ReduceBug::kNoBarrierBeforeBroadcast &&
               (kBug != ReduceBug::kBarrierInBranch || thread >= 16)) {
      __syncthreads();
    }
    // The total goes through each warp's own place, too.
    if (thread % 32 == 0) by_warp[thread / 32] = total[0];
    if (kBug != ReduceBug::kNoSyncwarp) __syncwarp();
    const float scale = by_warp[thread / 32];
    for (int32_t i = thread; i < n; i += kThreads) {
      int32_t at = i;
      if (kBug == ReduceBug::kTwoThreadsWriteOneElement && i == 5) at = 4;
      out[row * n + at] = __fmul_rn(staged[n - 1 - at], scale);
    }
    if (kBug != ReduceBug::kNoBarrierBeforeReuse) __syncthreads();
  }
}

constexpr int kStages = 3;
constexpr int kTokens = 8;
constexpr int kOutputs = 64;
constexpr uint32_t kRowBytes = 128;
constexpr uint32_t kAtom = 8 * kRowBytes;

struct Ring {
  alignas(1024) std::byte w[kStages][kOutputs * kRowBytes];
  alignas(1024) std::byte x[kStages][kTokens * kRowBytes];
  ptx::Mbarrier full[kStages];
  ptx::Mbarrier empty[kStages];
};

__device__ __forceinline__ void store(const float (&d)[4], float* out, int32_t tokens) {
  const int thread = static_cast<int>(threadIdx.x);
  const int output = thread / 32 * 16 + thread % 32 / 4;
  for (int i = 0; i < 4; ++i) {
    const int token = thread % 4 * 2 + i % 2;
    if (token < tokens) out[token * kOutputs + output + i / 2 * 8] = d[i];
  }
}

template <PipelineBug kBug>
__device__ __forceinline__ void produce(Ring& ring,
                                        const TensorMap& x,
                                        const TensorMap& w,
                                        int32_t chunks) {
  constexpr int kRing = kBug == PipelineBug::kRingOneShort ? kStages - 1 : kStages;
  const int32_t end = kBug == PipelineBug::kCopyNobodyWaitsFor ? chunks + 1 : chunks;
  for (int32_t chunk = 0; chunk < end; ++chunk) {
    const int stage = chunk % kRing;
    const int round = chunk / kRing % 2;
    if (kBug != PipelineBug::kNoEmptyWait) {
      const int parity = kBug == PipelineBug::kWrongParity ? round : round ^ 1;
      ptx::mbar_wait(&ring.empty[stage], parity);
    }
    uint32_t bytes = (kOutputs + kTokens) * kRowBytes;
    if (kBug == PipelineBug::kExpectTooFew) bytes = kOutputs * kRowBytes;
    if (kBug == PipelineBug::kExpectTooMany) bytes += kRowBytes;
    ptx::mbar_arrive_expect_tx(&ring.full[stage], bytes);
    ptx::tma_load_2d(ring.w[stage], &w, chunk * 64, 0, &ring.full[stage]);
    ptx::tma_load_2d(ring.x[stage], &x, chunk * 64, 0, &ring.full[stage]);
  }
}

template <PipelineBug kBug>
__device__ __forceinline__ void consume_chunk(Ring& ring,
                                              int32_t chunk,
                                              bool first,
                                              float (&d)[4]) {
  const int stage = chunk % kStages;
  if (kBug != PipelineBug::kNoFullWait) ptx::mbar_wait(&ring.full[stage], chunk / kStages % 2);
  const uint32_t w = ptx::shared_address(ring.w[stage]);
  const uint32_t x = ptx::shared_address(ring.x[stage]);
  if (kBug != PipelineBug::kNoWgmmaFence) ptx::wgmma_fence();
  for (uint32_t step = 0; step < 4; ++step) {
    const Swizzle swizzle = kBug == PipelineBug::kDescriptorSwizzle ? Swizzle::k64 : Swizzle::k128;
    const uint32_t stride = kBug == PipelineBug::kAtomStride ? 2 * kAtom : kAtom;
    ptx::wgmma_bf16(d,
                    ptx::matrix_descriptor(w + step * 32, swizzle, stride),
                    ptx::matrix_descriptor(x + step * 32, Swizzle::k128, kAtom),
                    !first || step > 0);
  }
  if (kBug != PipelineBug::kNoCommit) ptx::wgmma_commit();
  const bool arrives = kBug == PipelineBug::kEveryLaneArrives || threadIdx.x % 32 == 0;
  if (kBug == PipelineBug::kArriveBeforeWgmmaWait) {
    if (arrives) ptx::mbar_arrive(&ring.empty[stage]);
    ptx::wgmma_wait<0>();
  } else {
    if (kBug != PipelineBug::kReadBeforeWgmmaWait) ptx::wgmma_wait<0>();
    if (arrives) ptx::mbar_arrive(&ring.empty[stage]);
  }
}

template <PipelineBug kBug>
__global__ void __launch_bounds__(160, 1) pipeline_kernel(const __grid_constant__ TensorMap x,
                                                          const __grid_constant__ TensorMap w,
                                                          int32_t chunks,
                                                          int32_t tokens,
                                                          float* out) {
  GPU_DYN_SHARED(Ring, ring);
  if (threadIdx.x == 0 && kBug != PipelineBug::kNotInitialized) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbar_init(&ring.full[stage], 1);
      ptx::mbar_init(&ring.empty[stage], 4);
    }
    if (kBug != PipelineBug::kNoFenceAfterInit) ptx::fence_mbar_init();
  }
  if (kBug != PipelineBug::kNoBarrierAfterInit) __syncthreads();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) produce<kBug>(ring, x, w, chunks);
    return;
  }
  // Two segments, folded at the end.
  float kept[4] = {};
  float d[4] = {};
  const int32_t middle = chunks / 2;
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk == middle) {
      for (int i = 0; i < 4; ++i) kept[i] = d[i];
    }
    consume_chunk<kBug>(ring, chunk, chunk == 0 || chunk == middle, d);
  }
  for (int i = 0; i < 4; ++i) d[i] = __fadd_rn(kept[i], d[i]);
  store(d, out, tokens);
}

struct Tiles {
  alignas(1024) uint16_t w[kOutputs * 64];
  alignas(1024) uint16_t x[kTokens * 64];
};

// Stores rows with the swizzle of 128 bytes, by all 128 threads.
__device__ __forceinline__ void store_tile(uint16_t* tile, const uint16_t* from, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * 64; i += 128) {
    const int row = i / 64;
    const int piece = i % 64 / 8 ^ row % 8;
    tile[row * 64 + piece * 8 + i % 8] = from[i];
  }
}

template <StoreBug kBug>
__global__ void __launch_bounds__(128, 1)
    stores_kernel(const uint16_t* x, const uint16_t* w, float* out) {
  GPU_DYN_SHARED(Tiles, tiles);
  store_tile(tiles.w, w, kOutputs);
  store_tile(tiles.x, x, kTokens);
  const bool by_reader = kBug == StoreBug::kFenceByTheReader;
  if (kBug != StoreBug::kNoProxyFence && !by_reader) ptx::fence_proxy_async();
  if (kBug != StoreBug::kNoBarrier) ptx::bar_sync(1, 128);
  if (by_reader && threadIdx.x == 0) ptx::fence_proxy_async();
  if (kBug == StoreBug::kPartOfAWarpgroup && threadIdx.x >= 96) return;
  float d[4] = {};
  ptx::wgmma_fence();
  for (uint32_t step = 0; step < 4; ++step) {
    const uint32_t offset = step * 32;
    ptx::wgmma_bf16(
        d,
        ptx::matrix_descriptor(ptx::shared_address(tiles.w) + offset, Swizzle::k128, kAtom),
        ptx::matrix_descriptor(ptx::shared_address(tiles.x) + offset, Swizzle::k128, kAtom),
        step > 0);
  }
  ptx::wgmma_commit();
  if (kBug == StoreBug::kReuseBeforeWait) tiles.w[threadIdx.x] = 0;
  ptx::wgmma_wait<0>();
  store(d, out, kTokens);
}

template <ReduceBug kBug>
void start(const float* x, int32_t n, float* out) {
  gpu::launch(nullptr,
              {.blocks_x = kRows / kRowsPerBlock,
               .threads = kThreads,
               .shared_bytes = n * int64_t{sizeof(float)}},
              reduce_kernel<kBug>,
              x,
              n,
              out);
}

template <PipelineBug kBug>
void start(const TensorMap& x, const TensorMap& w, int32_t chunks, int32_t tokens, float* out) {
  gpu::launch(nullptr,
              {.threads = 160, .shared_bytes = sizeof(Ring)},
              pipeline_kernel<kBug>,
              x,
              w,
              chunks,
              tokens,
              out);
}

template <StoreBug kBug>
void start(const uint16_t* x, const uint16_t* w, float* out) {
  gpu::launch(
      nullptr, {.threads = 128, .shared_bytes = sizeof(Tiles)}, stores_kernel<kBug>, x, w, out);
}

TensorMap matrix(const std::vector<uint16_t>& data, int32_t rows, int32_t k, int32_t box) {
  return gpu::make_tensor_map({.data = data.data(),
                               .element_bytes = 2,
                               .rank = 2,
                               .sizes = {k, rows},
                               .strides = {0, int64_t{k} * 2},
                               .box = {64, box},
                               .swizzle = Swizzle::k128});
}

}  // namespace

std::vector<float> run_reduce(ReduceBug bug, const std::vector<float>& x, int32_t n) {
  std::vector<float> out(x.size(), -1.0F);
  with_bug<ReduceBug::kTwoThreadsWriteOneElement>(
      bug, [&]<ReduceBug kBug>() { start<kBug>(x.data(), n, out.data()); });
  return out;
}

std::vector<float> run_pipeline(PipelineBug bug,
                                const std::vector<uint16_t>& x,
                                const std::vector<uint16_t>& w,
                                int32_t tokens,
                                int32_t k,
                                int32_t room) {
  std::vector<float> out(static_cast<size_t>(room) * kOutputs, -1.0F);
  const TensorMap x_map = matrix(x, tokens, k, kTokens);
  const TensorMap w_map = matrix(w, kOutputs, k, kOutputs);
  with_bug<PipelineBug::kCopyNobodyWaitsFor>(bug, [&]<PipelineBug kBug>() {
    start<kBug>(x_map, w_map, (k + 63) / 64, tokens, out.data());
  });
  return out;
}

std::vector<float> run_stores(StoreBug bug,
                              const std::vector<uint16_t>& x,
                              const std::vector<uint16_t>& w) {
  std::vector<float> out(size_t{kTokens} * kOutputs, -1.0F);
  with_bug<StoreBug::kPartOfAWarpgroup>(
      bug, [&]<StoreBug kBug>() { start<kBug>(x.data(), w.data(), out.data()); });
  return out;
}

}  // namespace sluice::kernels::test
