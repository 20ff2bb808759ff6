// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_blocks.h"

#include <cstring>

#include "kernels/cpu/cpu_operators.h"

namespace sluice::kernels::cpu {
namespace {

// Calls copy(cache bytes, slot bytes, size) in the slot's order.
template <typename Copy>
void for_runs(const KvBlocksArgs& args, const Copy& copy) {
  std::byte* slot = args.slot;
  for (const BlockId block : args.blocks) {
    for (int32_t layer = 0; layer < args.num_layers; ++layer) {
      for (int32_t i = 0; i < args.num_planes; ++i) {
        const KvBlocksArgs::Plane& plane = args.planes[static_cast<size_t>(i)];
        copy(plane.data + layer * args.layer_stride + block.value * plane.block_stride,
             slot,
             static_cast<size_t>(plane.bytes));
        slot += plane.bytes;
      }
    }
  }
}

}  // namespace

void gather_kv_blocks(const ExecContext& /*ctx*/, const KvBlocksArgs& args) {
  for_runs(args, [](const std::byte* cache, std::byte* slot, size_t bytes) {
    std::memcpy(slot, cache, bytes);
  });
}

void scatter_kv_blocks(const ExecContext& /*ctx*/, const KvBlocksArgs& args) {
  for_runs(args, [](std::byte* cache, const std::byte* slot, size_t bytes) {
    std::memcpy(cache, slot, bytes);
  });
}

}  // namespace sluice::kernels::cpu
