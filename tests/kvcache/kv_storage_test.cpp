// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/kv_storage.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace sluice {
namespace {

size_t resident_pages(std::span<std::byte> bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((bytes.size() + page - 1) / page);
  EXPECT_EQ(mincore(bytes.data(), bytes.size(), pages.data()), 0) << std::strerror(errno);
  return static_cast<size_t>(
      std::ranges::count_if(pages, [](unsigned char one) { return (one & 1) != 0; }));
}

TEST(KvStorage, MemoryComesWithTheFirstUseOfABlock) {
  // A block has a page of the system in each of 6 planes.
  const auto page = static_cast<int32_t>(sysconf(_SC_PAGESIZE));
  KvGroupSpec group{.num_blocks = 1024, .num_layers = 3};
  group.planes.assign(2, {.num_heads = 2, .width = page / 64, .dtype = DType::kBF16});
  auto storage = KvStorage::create({group}, 16, AlignedBuffer::Pages::kHuge);
  ASSERT_TRUE(storage);
  EXPECT_EQ(resident_pages(storage->bytes()), 0U);
  std::vector<std::byte> block(static_cast<size_t>(storage->block_bytes()), std::byte{7});
  storage->copy_in(storage->whole(0, BlockId{0}), block);
  EXPECT_EQ(resident_pages(storage->bytes()), 6U);
  storage->copy_in(storage->whole(0, BlockId{500}), block);
  EXPECT_EQ(resident_pages(storage->bytes()), 12U);
}

TEST(KvStorage, MemoryIsThereAheadOfItsUseAndNoFurther) {
  const auto page = static_cast<int32_t>(sysconf(_SC_PAGESIZE));
  KvGroupSpec group{.num_blocks = 4096, .num_layers = 2};
  group.planes.assign(2, {.num_heads = 2, .width = page / 64, .dtype = DType::kBF16});
  auto storage = KvStorage::create({group}, 16, AlignedBuffer::Pages::kSmall);
  ASSERT_TRUE(storage);
  const Expected<AlignedBuffer> probe =
      AlignedBuffer::allocate(page, "probe", AlignedBuffer::Pages::kSmall);
  if (madvise(probe->data(), probe->size(), MADV_POPULATE_WRITE) != 0) {
    GTEST_SKIP() << "the kernel does not populate memory on advice";
  }
  std::vector<std::byte> block(static_cast<size_t>(storage->block_bytes()), std::byte{7});
  storage->copy_in(storage->whole(0, BlockId{3}), block);
  const auto piece = static_cast<size_t>(AlignedBuffer::kHugePageBytes / page);  // blocks, pages
  const int64_t ahead = AlignedBuffer::kHugePageBytes;
  const auto back = [&](size_t num_filled) {
    int32_t num_pieces = 0;
    while (storage->back_ahead(0, static_cast<int32_t>(num_filled), ahead)) ++num_pieces;
    return num_pieces;
  };
  EXPECT_EQ(back(0), 4);  // one of each plane
  EXPECT_EQ(resident_pages(storage->bytes()), 4 * piece);
  EXPECT_EQ(back(piece / 2), 0);
  EXPECT_EQ(back(piece), 4);
  EXPECT_EQ(resident_pages(storage->bytes()), 8 * piece);
  back(4096);
  EXPECT_EQ(resident_pages(storage->bytes()), size_t{4} * 4096);
  std::vector<std::byte> kept(block.size());
  storage->copy_out(storage->whole(0, BlockId{3}), kept);
  EXPECT_EQ(kept, block);
}

// A stage has such a group where its layers are all of another.
TEST(KvStorage, AGroupWithoutLayersTakesNothing) {
  KvGroupSpec group{.num_blocks = 64, .num_layers = 2};
  group.planes.assign(2, {.num_heads = 2, .width = 8, .dtype = DType::kBF16});
  KvGroupSpec empty = group;
  empty.num_layers = 0;
  auto storage = KvStorage::create({empty, group}, 16);
  auto alone = KvStorage::create({group}, 16);
  ASSERT_TRUE(storage && alone);
  EXPECT_EQ(storage->bytes().size(), alone->bytes().size());
  EXPECT_EQ(storage->block_bytes(0), 0);
  EXPECT_FALSE(storage->back_ahead(0, 0, 1 << 20));
  storage->bytes()[0] = std::byte{3};
  storage->copy_block(0, BlockId{0}, BlockId{5});
  EXPECT_EQ(std::ranges::count(storage->bytes(), std::byte{3}), 1);
}

// The bytes are those of the pieces, one after the other; here behind a group of other planes.
TEST(KvStorage, BlocksAreGatheredAndScatteredAsTheirPiecesAre) {
  KvGroupSpec window{.kind = KvGroupKind::kWindow, .window = 32, .num_blocks = 5, .num_layers = 2};
  window.planes.assign(2, {.num_heads = 3, .width = 24, .dtype = DType::kI8});
  KvGroupSpec full{.num_blocks = 7, .num_layers = 3};
  full.planes = {{.num_heads = 2, .width = 8, .dtype = DType::kF16}, {.num_heads = 1, .width = 4}};
  const std::vector<BlockId> blocks = {BlockId(4), BlockId(0), BlockId(3)};
  for (int32_t group = 0; group < 2; ++group) {
    auto from = KvStorage::create({window, full}, 16);
    auto by_pieces = KvStorage::create({window, full}, 16);
    auto at_once = KvStorage::create({window, full}, 16);
    ASSERT_TRUE(from && by_pieces && at_once);
    for (size_t i = 0; i < from->bytes().size(); ++i) {
      from->bytes()[i] = static_cast<std::byte>(i * 31 + i / 251);
    }
    const auto bytes = static_cast<size_t>(from->block_bytes(group));
    std::vector<std::byte> want;
    for (const BlockId block : blocks) {
      std::vector<std::byte> one(bytes);
      from->copy_out(from->whole(group, block), one);
      by_pieces->copy_in(by_pieces->whole(group, block), one);
      want.insert(want.end(), one.begin(), one.end());
    }
    std::vector<std::byte> slot(want.size());
    from->gather({}, group, blocks, slot.data());
    EXPECT_EQ(slot, want);
    at_once->scatter({}, group, blocks, slot.data());
    EXPECT_TRUE(std::ranges::equal(at_once->bytes(), by_pieces->bytes()));
  }
}

}  // namespace
}  // namespace sluice
