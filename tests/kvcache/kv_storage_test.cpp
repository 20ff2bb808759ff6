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

constexpr size_t kBytes = size_t{24} << 20;

class Mapping {
 public:
  Mapping()
      : at_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}

  ~Mapping() { munmap(at_, kBytes); }

  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(at_), kBytes};
  }

  [[nodiscard]] size_t resident_pages() const {
    std::vector<unsigned char> pages(num_pages());
    EXPECT_EQ(mincore(at_, kBytes, pages.data()), 0) << std::strerror(errno);
    return static_cast<size_t>(
        std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }));
  }

  static size_t num_pages() { return kBytes / static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

 private:
  void* at_;
};

TEST(Prefault, BacksEveryPageAndKeepsContents) {
  const Mapping probe;
  if (madvise(probe.bytes().data(), kBytes, MADV_POPULATE_WRITE) != 0) {
    GTEST_SKIP() << "the kernel does not populate memory on advice";
  }
  for (const bool huge : {false, true}) {
    const Mapping mapping;
    EXPECT_EQ(mapping.resident_pages(), 0U);
    mapping.bytes()[kBytes / 2] = std::byte{7};
    const Prefault prefault(mapping.bytes(), huge);
    prefault.wait();
    EXPECT_EQ(mapping.resident_pages(), Mapping::num_pages());
    EXPECT_EQ(mapping.bytes()[kBytes / 2], std::byte{7});
  }
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
