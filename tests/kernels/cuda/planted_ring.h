// SPDX-License-Identifier: Apache-2.0
// A ring of stages that the copy engine fills with a segment's chunk each, and the products of a
// warpgroup's 64 outputs with it, for the planted linear layers of planted_segments.h.
#pragma once

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/ring.h"
#include "tests/kernels/cuda/planted_segments.h"

namespace sluice::kernels::test {

inline constexpr int kRingStages = 3;
inline constexpr int kRingConsumers = 128;  // the first threads of a block
inline constexpr int kRingConsumerWarps = kRingConsumers / 32;
inline constexpr uint32_t kRingRowBytes = 128;
inline constexpr uint32_t kRingWeightBytes = SegmentsShape::kTileOutputs * kRingRowBytes;
inline constexpr uint32_t kRingXBytes = SegmentsShape::kTokens * kRingRowBytes;

using RingCursor = cuda::Cursor<kRingStages>;

// The ring must be the first member of a struct that is aligned to 1024.
struct SegmentsRing {
  std::byte w[kRingStages][kRingWeightBytes];
  std::byte x[kRingStages][kRingXBytes];
  gpu::ptx::Mbarrier full[kRingStages];
  gpu::ptx::Mbarrier empty[kRingStages];
};

// One thread calls it; fence_mbar_init and a barrier follow. `copiers` threads fill a stage.
__device__ __forceinline__ void init_ring(SegmentsRing& ring, int copiers) {
  for (int stage = 0; stage < kRingStages; ++stage) {
    gpu::ptx::mbar_init(&ring.full[stage], copiers);
    gpu::ptx::mbar_init(&ring.empty[stage], kRingConsumerWarps);
  }
}

// d = the first `steps` of the stage's products, as a group of wgmma that is not waited for.
__device__ __forceinline__ void issue_steps(SegmentsRing& ring,
                                            int stage,
                                            int steps,
                                            float (&d)[4]) {
  constexpr uint32_t kAtom = 8 * kRingRowBytes;
  const uint32_t w = gpu::ptx::shared_address(ring.w[stage]);
  const uint32_t x = gpu::ptx::shared_address(ring.x[stage]);
  gpu::ptx::fence_registers(d);
  gpu::ptx::wgmma_fence();
  for (int step = 0; step < steps; ++step) {
    const auto offset = static_cast<uint32_t>(32 * step);
    gpu::ptx::wgmma_bf16(d,
                         gpu::ptx::matrix_descriptor(w + offset, gpu::Swizzle::k128, kAtom),
                         gpu::ptx::matrix_descriptor(x + offset, gpu::Swizzle::k128, kAtom),
                         step > 0);
  }
  gpu::ptx::wgmma_commit();
}

}  // namespace sluice::kernels::test
