// SPDX-License-Identifier: Apache-2.0
// Copies blocks of the paged KV cache to a slot and back (kernels/kv_blocks.h). A block of threads
// has a part of one layer of one KV block. The launch's arguments carry the KV blocks' numbers, so
// that no memory has to be kept for them.
#include <algorithm>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_blocks.h"

namespace sluice::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kThreadUnits = 4;      // in flight at once
constexpr size_t kMostBlocks = 512;  // blocks of a launch; arguments have 4 KiB

struct Copied {
  KvBlocksArgs::Plane planes[kMostKvPlanes];
  int32_t num_planes;
  int32_t num_layers;
  int64_t layer_stride;
  int64_t layer_bytes;  // in the slot
  std::byte* slot;
  int32_t blocks[kMostBlocks];
};

static_assert(sizeof(Copied) <= 4096);

enum class Direction : uint8_t { kGather, kScatter };

// Returns where byte `at` of a block's layer, counted in the slot, is in the cache.
__device__ __forceinline__ std::byte* place_of(const Copied& copied,
                                               int32_t block,
                                               int32_t layer,
                                               int64_t at) {
  int32_t plane = 0;
  while (plane + 1 < copied.num_planes && at >= copied.planes[plane].bytes) {
    at -= copied.planes[plane].bytes;
    ++plane;
  }
  return copied.planes[plane].data + layer * copied.layer_stride +
         block * copied.planes[plane].block_stride + at;
}

template <Direction kDirection, typename Unit>
__global__ void __launch_bounds__(kThreads, 1)
    kv_blocks_kernel(const __grid_constant__ Copied copied) {
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int32_t block = copied.blocks[row / copied.num_layers];
  const int32_t layer = row % copied.num_layers;
  std::byte* const slot = copied.slot + row * copied.layer_bytes;
  const int64_t first =
      (int64_t{blockIdx.y} * kThreads * kThreadUnits + threadIdx.x) * int64_t{sizeof(Unit)};
  constexpr int64_t kStep = kThreads * int64_t{sizeof(Unit)};
  Unit units[kThreadUnits];
#pragma unroll
  for (int i = 0; i < kThreadUnits; ++i) {
    const int64_t at = first + i * kStep;
    if (at >= copied.layer_bytes) continue;
    const std::byte* const from =
        kDirection == Direction::kGather ? place_of(copied, block, layer, at) : slot + at;
    units[i] = *reinterpret_cast<const Unit*>(from);
  }
#pragma unroll
  for (int i = 0; i < kThreadUnits; ++i) {
    const int64_t at = first + i * kStep;
    if (at >= copied.layer_bytes) continue;
    std::byte* const to =
        kDirection == Direction::kGather ? slot + at : place_of(copied, block, layer, at);
    *reinterpret_cast<Unit*>(to) = units[i];
  }
}

bool is_in_sixteens(const Copied& copied) {
  constexpr int64_t kUnit = sizeof(uint4);
  const auto is_aligned = [](const std::byte* p) {
    return reinterpret_cast<uintptr_t>(p) % kUnit == 0;
  };
  return is_aligned(copied.slot) && copied.layer_stride % kUnit == 0 &&
         std::all_of(copied.planes,
                     copied.planes + copied.num_planes,
                     [&](const KvBlocksArgs::Plane& plane) {
                       return is_aligned(plane.data) && plane.block_stride % kUnit == 0 &&
                              plane.bytes % kUnit == 0;
                     });
}

template <Direction kDirection, typename Unit>
void launch_units(Stream stream, const Copied& copied, size_t num_blocks) {
  const int64_t bytes_of_y = kThreads * kThreadUnits * static_cast<int64_t>(sizeof(Unit));
  gpu::launch(stream,
              {.blocks_x = static_cast<int64_t>(num_blocks) * copied.num_layers,
               .blocks_y = ceil_div(copied.layer_bytes, bytes_of_y),
               .threads = kThreads},
              kv_blocks_kernel<kDirection, Unit>,
              copied);
}

template <Direction kDirection>
void launch_all(Stream stream, const KvBlocksArgs& args) {
  CHECK(args.num_planes >= 1 && args.num_planes <= kMostKvPlanes);
  Copied copied{.planes = {},
                .num_planes = args.num_planes,
                .num_layers = args.num_layers,
                .layer_stride = args.layer_stride,
                .layer_bytes = 0,
                .slot = args.slot,
                .blocks = {}};
  std::copy_n(args.planes.begin(), args.num_planes, copied.planes);
  for (int32_t i = 0; i < args.num_planes; ++i) copied.layer_bytes += copied.planes[i].bytes;
  for (auto left = args.blocks; !left.empty();) {
    const size_t count = left.size() < kMostBlocks ? left.size() : kMostBlocks;
    for (size_t i = 0; i < count; ++i) copied.blocks[i] = left[i].value;
    if (is_in_sixteens(copied)) {
      launch_units<kDirection, uint4>(stream, copied, count);
    } else {
      launch_units<kDirection, std::byte>(stream, copied, count);
    }
    copied.slot += copied.layer_bytes * copied.num_layers * static_cast<int64_t>(count);
    left = left.subspan(count);
  }
}

}  // namespace

void launch_gather_kv_blocks(Stream stream, const KvBlocksArgs& args) {
  launch_all<Direction::kGather>(stream, args);
}

void launch_scatter_kv_blocks(Stream stream, const KvBlocksArgs& args) {
  launch_all<Direction::kScatter>(stream, args);
}

}  // namespace sluice::kernels::cuda
