// SPDX-License-Identifier: Apache-2.0
#include "kvcache/block_pool.h"
#include "tests/support/tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace sluice {
namespace {

TEST(BlockPool, FreedBlockKeepsItsTagUntilReused) {
  BlockPool pool(2);
  const BlockId a = pool.take().block;
  const BlockId b = pool.take().block;
  pool.set_tag(a, 7);
  pool.release(a);
  pool.release(b);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_EQ(pool.tag(a), 7);
  EXPECT_EQ(pool.take().block, b);  // free ones go first
  const BlockPool::Taken taken = pool.take();
  EXPECT_EQ(taken.block, a);
  EXPECT_EQ(taken.evicted_tag, 7);
  EXPECT_EQ(pool.tag(a), BlockPool::kNoTag);
  EXPECT_EQ(pool.take().block, kNullBlock);
}

TEST(BlockPool, ABlockThatWasUsedIsTakenBeforeOneThatNeverWas) {
  BlockPool pool(8);
  const BlockId first = pool.take().block;
  const BlockId second = pool.take().block;
  const BlockId third = pool.take().block;
  EXPECT_EQ((std::vector{first.value, second.value, third.value}), (std::vector{0, 1, 2}));
  pool.set_tag(second, 7);
  pool.release(third);
  pool.release(second);
  pool.release(first);
  EXPECT_EQ(pool.evict(), 7);
  std::vector<int32_t> order;
  for (int32_t i = 0; i < 5; ++i) order.push_back(pool.take().block.value);
  EXPECT_EQ(order, (std::vector{1, 0, 2, 3, 4}));
}

TEST(BlockPool, LeastRecentlyReleasedCachedBlockIsEvictedFirst) {
  BlockPool pool(3);
  std::vector<BlockId> blocks;
  for (int32_t i = 0; i < 3; ++i) {
    blocks.push_back(pool.take().block);
    pool.set_tag(blocks.back(), i);
  }
  for (const BlockId block : blocks) pool.release(block);
  pool.share(blocks[0]);  // used again, so it becomes the newest
  pool.release(blocks[0]);
  EXPECT_EQ(pool.take().evicted_tag, 1);
  EXPECT_EQ(pool.take().evicted_tag, 2);
  EXPECT_EQ(pool.take().evicted_tag, 0);
}

TEST(BlockPool, AWorthierBlockGoesLaterAndNotNever) {
  BlockPool pool(4);
  std::vector<BlockId> blocks;
  for (int32_t i = 0; i < 4; ++i) {
    blocks.push_back(pool.take().block);
    pool.set_tag(blocks.back(), i);
  }
  pool.release(blocks[0], /*worth=*/1);
  for (size_t i = 1; i < 4; ++i) pool.release(blocks[i]);
  int32_t num_turns = 0;
  while (true) {
    const BlockPool::Taken taken = pool.take();
    if (taken.block == blocks[0]) break;
    pool.set_tag(taken.block, 100 + num_turns++);
    pool.release(taken.block);
    ASSERT_LT(num_turns, 100);
  }
  // The block counts as released four releases later.
  EXPECT_EQ(num_turns, 4);
}

TEST(BlockPool, BlockInTransferIsNotReusedUntilTheTransferEnds) {
  BlockPool pool(1);
  const BlockId block = pool.take().block;
  pool.begin_transfer(block);
  pool.begin_transfer(block);
  pool.release(block);
  EXPECT_EQ(pool.take().block, kNullBlock);
  pool.end_transfer(block);
  EXPECT_EQ(pool.take().block, kNullBlock);
  pool.end_transfer(block);
  EXPECT_EQ(pool.take().block, block);
}

TEST(BlockPool, ABlockHasANewGenerationEachTimeItIsTaken) {
  BlockPool pool(1);
  const BlockId block = pool.take().block;
  const uint32_t first = pool.generation(block);
  pool.set_tag(block, 7);
  pool.release(block);
  pool.share(block);  // the same contents
  pool.release(block);
  EXPECT_EQ(pool.generation(block), first);
  ASSERT_EQ(pool.take().evicted_tag, 7);
  EXPECT_EQ(pool.generation(block), first + 1);
  pool.release(block);
  EXPECT_EQ(pool.generation(block), first + 1);
  ASSERT_EQ(pool.take().block, block);
  EXPECT_EQ(pool.generation(block), first + 2);
}

TEST(BlockPool, APinnedBlockStaysUntilTheLastPinEnds) {
  BlockPool pool(2, /*max_pinned=*/1);
  const BlockId kept = pool.take().block;
  const BlockId other = pool.take().block;
  pool.set_tag(kept, 7);
  pool.release(kept);
  pool.release(other);
  ASSERT_TRUE(pool.pin(kept));
  ASSERT_TRUE(pool.pin(kept));  // the same block: no more of the quota
  EXPECT_EQ(pool.num_pinned(), 1);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.take().block, other);
  EXPECT_EQ(pool.take().block, kNullBlock);
  EXPECT_EQ(pool.evict(), BlockPool::kNoTag);
  EXPECT_FALSE(pool.pin(other));
  pool.unpin(kept);
  EXPECT_EQ(pool.take().block, kNullBlock);
  pool.unpin(kept);
  EXPECT_EQ(pool.num_cached(), 1);  // it is found as before
  ASSERT_TRUE(pool.pin(other));
  EXPECT_EQ(pool.check_integrity(), "");
}

TEST(BlockPool, WithoutItsTagABlockIsFreeOnceNobodyHasIt) {
  BlockPool pool(2);
  const BlockId cached = pool.take().block;
  const BlockId owned = pool.take().block;
  pool.set_tag(cached, 1);
  pool.set_tag(owned, 2);
  pool.release(cached);
  pool.clear_tag(cached);
  pool.clear_tag(owned);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.num_free(), 1);
  pool.release(owned);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.check_integrity(), "");
}

// --- Every short sequence of operations on a small pool, against a plain reference -------------

struct Reference {
  struct State {
    int32_t owners = 0;
    int32_t transfers = 0;
    int32_t pins = 0;
    uint32_t generation = 0;
    int32_t tag = BlockPool::kNoTag;
    int64_t credit = 0;
    int64_t due = 0;  // when, in releases
  };

  std::map<int32_t, State> blocks;
  std::deque<int32_t> free;
  std::vector<int32_t> cached;
  int64_t num_releases = 0;

  explicit Reference(int32_t num_blocks) {
    for (int32_t i = 0; i < num_blocks; ++i) {
      blocks[i] = {};
      free.push_back(i);
    }
  }

  bool idle(int32_t b) {
    return blocks[b].owners == 0 && blocks[b].transfers == 0 && blocks[b].pins == 0;
  }

  int32_t num_pinned() {
    return static_cast<int32_t>(
        std::ranges::count_if(blocks, [](const auto& block) { return block.second.pins > 0; }));
  }

  void settle(int32_t b) {
    if (!idle(b)) return;
    if (blocks[b].tag == BlockPool::kNoTag) {
      free.push_front(b);
      return;
    }
    const auto num_blocks = static_cast<int64_t>(blocks.size());
    blocks[b].due = ++num_releases + blocks[b].credit * num_blocks;
    cached.push_back(b);
  }

  int32_t evict() {
    if (cached.empty()) return BlockPool::kNoTag;
    const auto first = std::ranges::min_element(cached, [this](int32_t a, int32_t b) {
      return std::pair(blocks[a].due, blocks[a].credit) <
             std::pair(blocks[b].due, blocks[b].credit);
    });
    const int32_t b = *first;
    cached.erase(first);
    free.push_front(b);
    return std::exchange(blocks[b].tag, BlockPool::kNoTag);
  }

  BlockPool::Taken take() {
    BlockPool::Taken taken;
    if (free.empty()) taken.evicted_tag = evict();
    if (free.empty()) return taken;
    taken.block = BlockId{free.front()};
    free.pop_front();
    blocks[taken.block.value].owners = 1;
    ++blocks[taken.block.value].generation;
    return taken;
  }
};

enum Operation : uint8_t {
  kTake,
  kEvict,
  kShare,
  kRelease,
  kReleaseDear,
  kTag,
  kBegin,
  kEnd,
  kNumOldOperations,
  kPin = kNumOldOperations,
  kUnpin,
  kClearTag,
  kNumOperations
};

// Applies one operation to both where it is allowed; false where it is not.
bool apply(Operation operation, int32_t b, BlockPool& pool, Reference& reference, int32_t& tag) {
  const BlockId block{b};
  Reference::State& state = reference.blocks[b];
  const bool has_contents = !reference.idle(b) || state.tag != BlockPool::kNoTag;
  switch (operation) {
    case kTake: {
      if (b != 0) return false;
      const BlockPool::Taken expected = reference.take();
      const BlockPool::Taken taken = pool.take();
      EXPECT_EQ(taken.block, expected.block);
      EXPECT_EQ(taken.evicted_tag, expected.evicted_tag);
      return true;
    }
    case kEvict:
      if (b != 0) return false;
      EXPECT_EQ(pool.evict(), reference.evict());
      return true;
    case kShare:
      if (!has_contents) return false;
      std::erase(reference.cached, b);
      ++state.owners;
      pool.share(block);
      return true;
    case kRelease:
    case kReleaseDear:
      if (state.owners == 0) return false;
      --state.owners;
      state.credit = operation == kReleaseDear ? 2 : 0;
      reference.settle(b);
      pool.release(block, operation == kReleaseDear ? 2 : 0);
      return true;
    case kTag:
      if (state.owners == 0 || state.tag != BlockPool::kNoTag) return false;
      state.tag = tag;
      pool.set_tag(block, tag++);
      return true;
    case kBegin:
      std::erase(reference.cached, b);
      std::erase(reference.free, b);
      ++state.transfers;
      pool.begin_transfer(block);
      return true;
    case kEnd:
      if (state.transfers == 0) return false;
      --state.transfers;
      reference.settle(b);
      pool.end_transfer(block);
      return true;
    case kPin: {
      if (!has_contents) return false;
      const bool may = state.pins > 0 || reference.num_pinned() == 0;
      EXPECT_EQ(pool.pin(block), may);
      if (!may) return true;
      std::erase(reference.cached, b);
      ++state.pins;
      return true;
    }
    case kUnpin:
      if (state.pins == 0) return false;
      --state.pins;
      reference.settle(b);
      pool.unpin(block);
      return true;
    case kClearTag:
      if (state.tag == BlockPool::kNoTag) return false;
      state.tag = BlockPool::kNoTag;
      std::erase(reference.cached, b);
      if (reference.idle(b)) reference.settle(b);
      pool.clear_tag(block);
      return true;
    case kNumOperations:
      break;
  }
  return false;
}

void compare(const BlockPool& pool, Reference& reference) {
  ASSERT_EQ(pool.check_integrity(), "");
  ASSERT_EQ(pool.num_pinned(), reference.num_pinned());
  ASSERT_EQ(pool.num_free(), static_cast<int32_t>(reference.free.size()));
  ASSERT_EQ(pool.num_cached(), static_cast<int32_t>(reference.cached.size()));
  for (const auto& [b, state] : reference.blocks) {
    ASSERT_EQ(pool.refcount(BlockId{b}), state.owners);
    ASSERT_EQ(pool.tag(BlockId{b}), state.tag);
    ASSERT_EQ(pool.generation(BlockId{b}), state.generation);
  }
}

void explore(const BlockPool& pool,
             const Reference& reference,
             int32_t tag,
             int depth,
             int num_operations) {
  if (depth == 0 || ::testing::Test::HasFailure()) return;
  for (int32_t b = 0; b < pool.num_blocks(); ++b) {
    for (int operation = 0; operation < num_operations; ++operation) {
      BlockPool next_pool = pool;
      Reference next = reference;
      int32_t next_tag = tag;
      if (!apply(static_cast<Operation>(operation), b, next_pool, next, next_tag)) continue;
      compare(next_pool, next);
      explore(next_pool, next, next_tag, depth - 1, num_operations);
    }
  }
}

TEST(BlockPool, AgreesWithAReferenceOnEveryShortSequenceOfOperations) {
  const int depth = testing::sample_of(5, 6);
  explore(BlockPool(2, 1), Reference(2), 100, depth + 1, kNumOldOperations);
  explore(BlockPool(3, 1), Reference(3), 100, depth, kNumOldOperations);
  explore(BlockPool(2, 1), Reference(2), 100, depth, kNumOperations);
}

}  // namespace
}  // namespace sluice
