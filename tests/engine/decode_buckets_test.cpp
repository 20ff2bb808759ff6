// SPDX-License-Identifier: Apache-2.0
#include "engine/rank/decode_buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace sluice {
namespace {

// A step of `count` sampling requests with one token each.
struct Decodes {
  explicit Decodes(int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      tokens.push_back(100 + i);
      positions.push_back(7 * i);
      starts.push_back(i + 1);
      lengths.push_back(7 * i + 1);
      rows.push_back(i);
      slots[0].push_back(16 * i);
      slots[1].push_back(16 * i + 1);
    }
  }

  ForwardBatch view() {
    slot_views = {slots[0], slots[1]};
    return {.token_ids = tokens,
            .positions = positions,
            .query_start_loc = starts,
            .seq_lens = lengths,
            .logits_indices = rows,
            .slot_mapping = slot_views,
            .block_tables = tables,
            .block_table_strides = strides,
            .max_seq_len = 50};
  }

  std::vector<TokenId> tokens;
  std::vector<int32_t> positions, starts = {0}, lengths, rows;
  std::vector<int64_t> slots[2];
  std::vector<std::span<const int64_t>> slot_views;
  std::vector<std::span<const int32_t>> tables = {{}, {}};
  std::vector<int32_t> strides = {3, 3};
};

// Bucket sizes without drafts, if each request chooses a token.
std::vector<int32_t> sizes_of(const Config& config) {
  return DecodeBuckets::sizes_of(config, config.max_num_seqs);
}

TEST(DecodeBuckets, SizesAreThoseAskedForThatCanRun) {
  Config config;
  config.max_num_seqs = 16;
  config.cuda_graph_sizes = {8, 2, 8, 17, 16};
  EXPECT_EQ(sizes_of(config), (std::vector<int32_t>{2, 8, 16}));
  config.enforce_eager = true;
  EXPECT_TRUE(sizes_of(config).empty());
}

TEST(DecodeBuckets, WithoutSizesTheLargestIsEveryRequestAtOnce) {
  Config config;
  config.max_num_seqs = 21;
  EXPECT_EQ(sizes_of(config), (std::vector<int32_t>{1, 2, 4, 8, 16, 21}));
  config.max_num_seqs = 64;
  EXPECT_EQ(sizes_of(config), (std::vector<int32_t>{1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64}));
  config.max_num_seqs = 4096;
  EXPECT_EQ(sizes_of(config).back(), 512);
}

TEST(DecodeBuckets, OneSizeIsTheLargest) {
  Config config;
  config.max_num_seqs = 64;
  config.cuda_graph_sizes = {20};
  EXPECT_EQ(sizes_of(config), (std::vector<int32_t>{1, 2, 4, 8, 16, 20}));
  config.max_num_seqs = 12;
  EXPECT_EQ(sizes_of(config), (std::vector<int32_t>{1, 2, 4, 8, 12}));
}

TEST(DecodeBuckets, RowsOfDraftsAreRecordedToo) {
  Config config;
  config.max_num_seqs = 2;
  EXPECT_EQ(DecodeBuckets::sizes_of(config, 10), (std::vector<int32_t>{1, 2, 4, 8, 10}));
  config.cuda_graph_sizes = {4, 10, 16};
  EXPECT_EQ(DecodeBuckets::sizes_of(config, 10), (std::vector<int32_t>{4, 10}));
}

TEST(DecodeBuckets, AStepTakesTheSmallestThatHoldsIt) {
  const DecodeBuckets buckets({2, 4}, 2);
  EXPECT_EQ(buckets.find(Decodes(1).view()), 0U);
  EXPECT_EQ(buckets.find(Decodes(2).view()), 0U);
  EXPECT_EQ(buckets.find(Decodes(3).view()), 1U);
  EXPECT_EQ(buckets.find(Decodes(4).view()), 1U);
  EXPECT_FALSE(buckets.find(Decodes(5).view()).has_value());
  EXPECT_FALSE(buckets.find(Decodes(0).view()).has_value());
  EXPECT_FALSE(DecodeBuckets({}, 2).find(Decodes(1).view()).has_value());
}

TEST(DecodeBuckets, StepsWithPromptsHaveNone) {
  const DecodeBuckets buckets({4}, 2);
  Decodes chunk(2);  // the second request has two tokens
  chunk.tokens.push_back(5);
  chunk.starts.back() = 3;
  EXPECT_FALSE(buckets.find(chunk.view()).has_value());
  Decodes middle(2);  // the second request's prompt goes on
  middle.rows.pop_back();
  EXPECT_FALSE(buckets.find(middle.view()).has_value());
}

TEST(DecodeBuckets, RowsOfDraftsAreRequestsOnTheBlocksOfTheirOwn) {
  DecodeBuckets buckets({1, 5}, 2);
  Decodes two(3);  // the second request has a draft
  two.starts = {0, 1, 3};
  two.lengths = {1, 9};
  two.positions = {0, 7, 8};
  const std::vector<int32_t> table[2] = {{1, 2, 3, 4, 5, 6}, {11, 12, 13, 14}};
  two.tables = {table[0], table[1]};
  two.strides = {3, 2};  // a group with more tokens per entry has fewer
  ASSERT_EQ(buckets.find(two.view()), 1U);
  const ForwardBatch padded = buckets.pad(two.view(), 1);
  const auto list = [](auto span) { return std::vector(span.begin(), span.end()); };
  EXPECT_EQ(list(padded.query_start_loc), (std::vector<int32_t>{0, 1, 2, 3, 3, 3}));
  EXPECT_EQ(list(padded.seq_lens), (std::vector<int32_t>{1, 8, 9, 0, 0}));
  EXPECT_EQ(list(padded.block_tables[0]), (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(list(padded.block_tables[1]),
            (std::vector<int32_t>{11, 12, 13, 14, 13, 14}));
}

// A state takes drafts back or again, which rows that count as requests of their own cannot.
TEST(DecodeBuckets, DraftsOfAModelWithStatesHaveNone) {
  const DecodeBuckets buckets({4}, 2, true);
  Decodes two(2);
  EXPECT_EQ(buckets.find(two.view()), 0U);
  const std::vector<int32_t> replays = {0, 1, 1};
  const std::vector<int32_t> drafts = {0, 0};
  ForwardBatch step = two.view();
  step.replay_start_loc = replays;
  step.num_drafts = drafts;
  step.num_replayed = 1;
  EXPECT_FALSE(buckets.find(step).has_value());
  EXPECT_EQ(DecodeBuckets({4}, 2).find(step), 0U);
}

TEST(DecodeBuckets, PaddingBelongsToNoRequestAndHasNoSlot) {
  DecodeBuckets buckets({1, 5}, 2);
  Decodes three(3);
  const ForwardBatch padded = buckets.pad(three.view(), 1);
  const auto list = [](auto span) { return std::vector(span.begin(), span.end()); };
  EXPECT_EQ(list(padded.token_ids), (std::vector<TokenId>{100, 101, 102, 0, 0}));
  EXPECT_EQ(list(padded.positions), (std::vector<int32_t>{0, 7, 14, 0, 0}));
  EXPECT_EQ(list(padded.query_start_loc), (std::vector<int32_t>{0, 1, 2, 3, 3, 3}));
  EXPECT_EQ(list(padded.seq_lens), (std::vector<int32_t>{1, 8, 15, 0, 0}));
  EXPECT_EQ(list(padded.logits_indices), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  ASSERT_EQ(padded.slot_mapping.size(), 2U);
  EXPECT_EQ(list(padded.slot_mapping[0]), (std::vector<int64_t>{0, 16, 32, -1, -1}));
  EXPECT_EQ(list(padded.slot_mapping[1]), (std::vector<int64_t>{1, 17, 33, -1, -1}));
  EXPECT_EQ(list(padded.block_table_strides), (std::vector<int32_t>{3, 3}));
  // Earlier contents are gone, and the arrays have not moved.
  const ForwardBatch again = buckets.pad(Decodes(1).view(), 1);
  EXPECT_EQ(list(again.token_ids), (std::vector<TokenId>{100, 0, 0, 0, 0}));
  EXPECT_EQ(again.token_ids.data(), padded.token_ids.data());
  EXPECT_EQ(list(buckets.pad(Decodes(0).view(), 0).query_start_loc), (std::vector<int32_t>{0, 0}));
}

}  // namespace
}  // namespace sluice
