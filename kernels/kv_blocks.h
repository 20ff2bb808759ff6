// SPDX-License-Identifier: Apache-2.0
// Blocks of a paged KV cache as one run of bytes, a slot, and back: how they leave for another
// worker and come from one where no host can copy them span by span.
//
// The order in the slot is that of kvcache/kv_piece.h: block by block, in a block layer by layer,
// in a layer plane by plane, and of a plane the bytes of the heads that are meant, which lie
// together in the cache. What lies between them in the cache is neither read nor written.
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
  // An array of each layer, as it lies in the first layer that is meant.
  struct Plane {
    std::byte* data = nullptr;  // of block 0, from the first head on that is meant
    int64_t block_stride = 0;   // bytes from block to block
    int64_t bytes = 0;          // of a block, those of the heads that are meant; at least 1
  };

  std::array<Plane, kMostKvPlanes> planes;
  int32_t num_planes = 0;
  int64_t layer_stride = 0;  // bytes from a layer's arrays to the next one's
  int32_t num_layers = 0;
  std::span<const BlockId> blocks;  // of the host, read by the call; to scatter none comes twice
  std::byte* slot = nullptr;        // kv_slot_bytes(); fastest where all of the above is in 16s
};

// Bytes of the slot.
constexpr int64_t kv_slot_bytes(const KvBlocksArgs& args) {
  int64_t layer_bytes = 0;
  for (int32_t i = 0; i < args.num_planes; ++i) {
    layer_bytes += args.planes[static_cast<size_t>(i)].bytes;
  }
  return layer_bytes * args.num_layers * static_cast<int64_t>(args.blocks.size());
}

// From the cache to the slot, and from the slot to the cache. On the CPU by the calling thread; of
// the context nothing is read but device and stream.
void gather_kv_blocks(const ExecContext& ctx, const KvBlocksArgs& args);
void scatter_kv_blocks(const ExecContext& ctx, const KvBlocksArgs& args);

}  // namespace sluice::kernels
