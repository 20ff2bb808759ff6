// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/draft_kv_index.h"

#include <gtest/gtest.h>

#include <numeric>
#include <span>
#include <vector>

namespace sluice {
namespace {

constexpr int32_t kBlock = 4;

std::vector<TokenId> text(int32_t count, TokenId from = 100) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

std::vector<BlockId> table(std::vector<int32_t> ids) {
  std::vector<BlockId> blocks;
  for (const int32_t id : ids) blocks.emplace_back(id);
  return blocks;
}

class DraftKvIndexTest : public ::testing::Test {
 protected:
  void write(const std::vector<TokenId>& known,
             const std::vector<BlockId>& blocks,
             int32_t begin,
             int32_t end) {
    index_.begin_pass();
    ASSERT_TRUE(index_.claim(blocks, begin / kBlock * kBlock, begin, end));
    DraftTokenChain chain(kBlock);
    index_.note(chain, known, blocks, begin, end);
  }

  void expect(const std::vector<TokenId>& known,
              const std::vector<BlockId>& blocks,
              int32_t first,
              int32_t end,
              int32_t from = 0) {
    DraftTokenChain chain(kBlock);
    const DraftKvIndex::Range found = index_.find(chain, known, blocks, from);
    EXPECT_EQ(found.first, first);
    EXPECT_EQ(found.end, end);
  }

  DraftKvIndex index_{8, kBlock};
};

TEST_F(DraftKvIndexTest, FindsWhatWasWrittenOfTheSameTokens) {
  expect(text(10), table({0, 1, 2}), 0, 0);
  write(text(10), table({0, 1, 2}), 0, 10);
  expect(text(10), table({0, 1, 2}), 0, 10);
  expect(text(13), table({0, 1, 2, 3}), 0, 10);  // the request has grown
  expect(text(13), table({0, 1}), 0, 8);         // another request, with two of the blocks
  expect(text(9), table({0, 1, 2}), 0, 8);       // unknown tokens do not count
  // Nor do those that follow the known ones in memory.
  const std::vector<TokenId> more = text(10);
  DraftTokenChain chain(kBlock);
  EXPECT_EQ(index_.find(chain, std::span(more).first(9), table({0, 1, 2}), 0).end, 8);
}

TEST_F(DraftKvIndexTest, OtherTokensOrTheSameBehindOthersAreNotFound) {
  write(text(8), table({0, 1}), 0, 8);
  expect(text(8, 50), table({0, 1}), 0, 0);
  std::vector<TokenId> other_start = text(8);
  other_start[0] = 7;
  expect(other_start, table({0, 1}), 0, 0);
  expect(text(8), table({1, 0}), 0, 0);
}

TEST_F(DraftKvIndexTest, ABlockThatIsSomebodyElsesNowIsNotFound) {
  write(text(12), table({0, 1, 2}), 0, 12);
  write(text(3, 900), table({1}), 0, 3);
  expect(text(12), table({0, 1, 2}), 0, 4);  // nothing behind the gap
  expect(text(12), table({0, 1, 2}), 0, 4, 4);
  expect(text(12), table({0, 1, 2}), 8, 12, 8);
  write(text(2, 900), table({2}), 0, 2);
  expect(text(12), table({0, 1, 2}), 8, 8, 8);
}

TEST_F(DraftKvIndexTest, WhatIsClaimedAndNotWrittenIsNotFound) {
  write(text(6), table({0, 1}), 0, 6);
  index_.begin_pass();
  ASSERT_TRUE(index_.claim(table({0, 1}), 0, 5, 7));
  expect(text(7), table({0, 1}), 0, 4);
}

TEST_F(DraftKvIndexTest, InOnePassABlockIsOneRequestsToWrite) {
  index_.begin_pass();
  EXPECT_TRUE(index_.claim(table({0, 1}), 0, 2, 8));
  EXPECT_FALSE(index_.claim(table({3, 1}), 0, 2, 5));  // both claims write block 1
  EXPECT_FALSE(index_.claim(table({0, 4}), 0, 4, 8));  // reads what the first claim writes
  EXPECT_TRUE(index_.claim(table({3, 1}), 0, 0, 4));   // only block 3
  EXPECT_TRUE(index_.claim(table({0}), 0, 0, 0));      // nothing
  index_.begin_pass();
  EXPECT_TRUE(index_.claim(table({4, 1}), 0, 4, 6));
  EXPECT_TRUE(index_.claim(table({4, 2}), 0, 4, 6));   // both read block 4
  EXPECT_FALSE(index_.claim(table({4, 3}), 0, 2, 6));  // which this claim would write
}

}  // namespace
}  // namespace sluice
