// SPDX-License-Identifier: Apache-2.0
// Copies blocks of a paged KV cache to one run of bytes, a slot, and back, so that they can leave
// for another worker or come from one where the host cannot copy them span by span.
//
// The slot's order is that of kvcache/kv_piece.h: by block, in a block by layer, in a layer by
// plane, in a plane the bytes of the selected heads, which lie together in the cache. Bytes of
// other heads are neither read nor written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/types.h"
#include "kernels/device.h"

namespace sluice::kernels {

inline constexpr int32_t kMostKvPlanes = 8;

struct KvBlocksArgs {
  // An array that every layer has, as it lies in the first selected layer.
  struct Plane {
    std::byte* data = nullptr;  // block 0, at its first selected head
    int64_t block_stride = 0;   // bytes from block to block
    int64_t bytes = 0;          // the selected heads in one block; at least 1
  };

  std::array<Plane, kMostKvPlanes> planes;
  int32_t num_planes = 0;
  int64_t layer_stride = 0;  // bytes from a layer's arrays to the next one's
  int32_t num_layers = 0;
  std::span<const BlockId> blocks;  // in host memory, read by the call; distinct for scatter
  std::byte* slot = nullptr;        // kv_slot_bytes(); fastest where all of the above is in 16s
};

// Returns the size of the slot in bytes.
constexpr int64_t kv_slot_bytes(const KvBlocksArgs& args) {
  int64_t layer_bytes = 0;
  for (int32_t i = 0; i < args.num_planes; ++i) {
    layer_bytes += args.planes[static_cast<size_t>(i)].bytes;
  }
  return layer_bytes * args.num_layers * static_cast<int64_t>(args.blocks.size());
}

// Copies from the cache to the slot, and from the slot to the cache. On the CPU the calling thread
// does it. Only the device and the stream of `ctx` are read.
void gather_kv_blocks(const ExecContext& ctx, const KvBlocksArgs& args);
void scatter_kv_blocks(const ExecContext& ctx, const KvBlocksArgs& args);

}  // namespace sluice::kernels
