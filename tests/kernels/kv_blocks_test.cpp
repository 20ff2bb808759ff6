// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_blocks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace sluice::kernels {
namespace {

// Two layers, planes of 3 and 2 bytes a block and head; K has two heads and V one.
TEST(KvBlocks, LieInTheSlotByBlockLayerPlaneAndHead) {
  std::vector<std::byte> cache(200);
  for (size_t i = 0; i < cache.size(); ++i) cache[i] = static_cast<std::byte>(i);
  const std::vector<BlockId> blocks = {BlockId(3), BlockId(1)};
  std::vector<std::byte> slot(64, std::byte{0xff});
  KvBlocksArgs args{.planes = {},
                    .num_planes = 2,
                    .layer_stride = 100,
                    .num_layers = 2,
                    .blocks = blocks,
                    .slot = slot.data()};
  args.planes[0] = {.data = cache.data() + 3, .block_stride = 9, .bytes = 6};  // heads 1 and 2 of 3
  args.planes[1] = {.data = cache.data() + 60, .block_stride = 2, .bytes = 2};
  ASSERT_EQ(kv_slot_bytes(args), 2 * 2 * 8);
  const ExecContext host;
  gather_kv_blocks(host, args);
  const std::vector<int> want = {30,  31,  32,  33,  34,  35,  66,  67,  130, 131, 132,
                                 133, 134, 135, 166, 167, 12,  13,  14,  15,  16,  17,
                                 62,  63,  112, 113, 114, 115, 116, 117, 162, 163, 255};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(static_cast<int>(slot[i]), want[i]) << i;

  const std::vector<std::byte> before = cache;
  for (std::byte& byte : slot) byte ^= std::byte{0x80};
  scatter_kv_blocks(host, args);
  std::vector<bool> is_changed(cache.size());
  for (size_t i = 0; i < 32; ++i) is_changed[static_cast<size_t>(want[i])] = true;
  for (size_t i = 0; i < cache.size(); ++i) {
    EXPECT_EQ(cache[i], is_changed[i] ? before[i] ^ std::byte{0x80} : before[i]) << i;
  }
}

}  // namespace
}  // namespace sluice::kernels
