// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {
namespace {

using Shape = KvBlocksShape;

constexpr int kPlaneFloats = Shape::kMeantHeads * Shape::kFloats;  // selected floats of a block
constexpr int kLayerFloats = 2 * kPlaneFloats;                     // floats of a block in both
constexpr int kBlockStride = Shape::kHeads * Shape::kFloats;
constexpr int kPlaneStride = Shape::kBlocks * kBlockStride;

struct Blocks {
  int32_t ids[Shape::kTaken];
};

template <KvBlocksBug kBug>
__device__ __forceinline__ int64_t place_of(int block, int layer, int at) {
  int plane = at < kPlaneFloats ? 0 : 1;
  if (kBug == KvBlocksBug::kPlaneOneUnitLate) plane = at <= kPlaneFloats ? 0 : 1;
  if (kBug == KvBlocksBug::kFirstPlaneAlone) plane = 0;
  int offset = plane == 0 ? at : at - kPlaneFloats;
  if (kBug == KvBlocksBug::kFirstPlaneAlone) offset = at % kPlaneFloats;
  if (kBug != KvBlocksBug::kHeadsFromTheFirst) offset += Shape::kFirstHead * Shape::kFloats;
  return (int64_t{layer} * 2 + plane) * kPlaneStride + block * kBlockStride + offset;
}

template <KvBlocksBug kBug, bool kGather>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    kv_blocks_kernel(float* cache, float* slot, const __grid_constant__ Blocks blocks) {
  const auto row = static_cast<int>(blockIdx.x);
  int layer = row % Shape::kLayers;
  int taken = row / Shape::kLayers;
  if (kBug == KvBlocksBug::kLayerForBlock) {
    layer = row / Shape::kTaken;
    taken = row % Shape::kTaken;
  }
  const int block = kBug == KvBlocksBug::kBlockByItsPlace ? taken : blocks.ids[taken];
  const int slot_row = kBug == KvBlocksBug::kSlotOfTheBlockAlone ? taken : row;
  float* const own = slot + slot_row * kLayerFloats;
  int end = kLayerFloats;
  if (kBug == KvBlocksBug::kUnmaskedTail) end = (end / Shape::kThreads + 1) * Shape::kThreads;
  if (kBug == KvBlocksBug::kOneUnitShort) end -= 4;
  for (auto at = static_cast<int>(threadIdx.x); at < end; at += Shape::kThreads) {
    float* const in_cache = cache + place_of<kBug>(block, layer, at);
    const bool to_slot = kGather != (kBug == KvBlocksBug::kReversed);
    if (to_slot) {
      own[at] = *in_cache;
    } else {
      *in_cache = own[at];
    }
  }
}

}  // namespace

std::vector<float> run_kv_blocks(KvBlocksBug bug,
                                 const std::vector<float>& cache,
                                 const std::vector<int32_t>& blocks) {
  constexpr int kRows = Shape::kTaken * Shape::kLayers;
  // There is room behind both, so that a bug's accesses stay inside.
  constexpr size_t kSlack = 2 * Shape::kThreads;
  std::vector<float> copied = cache;
  copied.resize(cache.size() + kSlack);
  std::vector<float> slot(static_cast<size_t>(kRows) * kLayerFloats + kSlack, -1.0F);
  Blocks ids{};
  for (int i = 0; i < Shape::kTaken; ++i) ids.ids[i] = blocks[static_cast<size_t>(i)];
  std::vector<float> result;
  with_bug<KvBlocksBug::kReversed>(bug, [&]<KvBlocksBug kBug>() {
    const gpu::LaunchShape shape{.blocks_x = kRows, .threads = Shape::kThreads};
    gpu::launch(nullptr, shape, kv_blocks_kernel<kBug, true>, copied.data(), slot.data(), ids);
    result = slot;
    for (float& value : slot) value += 1.0F;
    gpu::launch(nullptr, shape, kv_blocks_kernel<kBug, false>, copied.data(), slot.data(), ids);
    result.insert(result.end(), copied.begin(), copied.end());
  });
  return result;
}

}  // namespace sluice::kernels::test
