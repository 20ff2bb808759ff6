// SPDX-License-Identifier: Apache-2.0
#include "engine/rank/input_batch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {
namespace {

template <typename T>
std::vector<T> list(std::span<const T> span) {
  return {span.begin(), span.end()};
}

// Each group's table has its own number of entries.
TEST(InputBatch, TablesAndSlotsAreThoseOfEachGroupsEntries) {
  const std::vector<KvGroupSpec> groups = {
      {.kind = KvGroupKind::kFull},
      {.kind = KvGroupKind::kState, .interval = 32},
      {.kind = KvGroupKind::kWindow, .window = 12}};
  InputBatch batch({.max_tokens = 16,
                    .max_seqs = 2,
                    .max_rows = 2,
                    .tables = InputBatch::Bounds::tables_of(groups, /*max_model_len=*/72, 8)});
  SchedulerOutput output;
  ScheduledRequest first;
  first.num_computed_tokens = 30;
  first.num_scheduled_tokens = 4;
  ScheduledRequest second;
  second.num_computed_tokens = 0;
  second.num_scheduled_tokens = 2;
  output.scheduled = {first, second};
  output.token_ids = {1, 2, 3, 4, 5, 6};
  const int32_t blocks[] = {10, 11, 12, 13, 14, 5, 6, -1, -1, 22, 23, 24, 15, 7, 25};
  for (const int32_t block : blocks) output.blocks.push_back(BlockId{block});
  const std::vector<InputBatch::SlotRows> no_rows(2);
  batch.build(output, no_rows);
  const ForwardBatch view = batch.view();
  EXPECT_EQ(list(view.block_table_strides), (std::vector<int32_t>{9, 3, 9}));
  EXPECT_EQ(list(view.block_tables[0].first(5)), (std::vector<int32_t>{10, 11, 12, 13, 14}));
  EXPECT_EQ(view.block_tables[0][9], 15);
  EXPECT_EQ(list(view.block_tables[1].first(2)), (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(view.block_tables[1][3], 7);
  EXPECT_EQ(list(view.block_tables[2].first(5)), (std::vector<int32_t>{-1, -1, 22, 23, 24}));
  EXPECT_EQ(view.block_tables[2][9], 25);
  EXPECT_EQ(list(view.slot_mapping[0]),
            (std::vector<int64_t>{13 * 8 + 6, 13 * 8 + 7, 14 * 8, 14 * 8 + 1, 15 * 8, 15 * 8 + 1}));
  const std::vector<int64_t> of_states = {
      5 * 32 + 30, 5 * 32 + 31, 6 * 32, 6 * 32 + 1, 7 * 32, 7 * 32 + 1};
  EXPECT_EQ(list(view.slot_mapping[1]), of_states);
  EXPECT_EQ(list(view.slot_mapping[2]),
            (std::vector<int64_t>{23 * 8 + 6, 23 * 8 + 7, 24 * 8, 24 * 8 + 1, 25 * 8, 25 * 8 + 1}));
}

}  // namespace
}  // namespace sluice
