// SPDX-License-Identifier: Apache-2.0
#include "engine/rank/device_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace sluice {
namespace {

InputBatch::Bounds bounds() {
  const InputBatch::Bounds::Table table = {.tokens_per_entry = 16, .max_entries = 5};
  return {.max_tokens = 20, .max_seqs = 3, .max_rows = 3, .tables = {table, table}};
}

class CudaDeviceBatch : public ::testing::Test {
 protected:
  CudaDeviceBatch() {
    auto device = kernels::Device::create({.type = DeviceType::kCuda, .threads = 1});
    CHECK(device.has_value());
    device_ = std::move(*device);
    auto batch = DeviceBatch::create(device_->memory(), bounds());
    CHECK(batch.has_value());
    batch_ = std::make_unique<DeviceBatch>(std::move(*batch));
  }

  template <typename T>
  std::vector<T> downloaded(std::span<const T> values) {
    std::vector<T> got(values.size());
    device_->memory().download(reinterpret_cast<std::byte*>(got.data()),
                               reinterpret_cast<const std::byte*>(values.data()),
                               static_cast<int64_t>(values.size_bytes()));
    device_->memory().wait();
    return got;
  }

  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<DeviceBatch> batch_;
};

using CudaDeviceBatchDeathTest = CudaDeviceBatch;

// First the most tokens, sequences and blocks, then fewer, at the same places; block tables only as
// far as the longest sequence needs.
TEST_F(CudaDeviceBatch, AStepsArraysArriveAtTheSamePlaces) {
  const int32_t* token_ids = nullptr;
  const int32_t* block_table = nullptr;
  for (const size_t num_seqs : {3U, 1U}) {
    const bool is_first = num_seqs == 3;
    const size_t num_tokens = is_first ? 20 : 1;
    const std::vector<int32_t> ids(num_tokens, 7);
    const std::vector<int32_t> positions(num_tokens, 8);
    const std::vector<int32_t> starts(num_seqs + 1, 9);
    const std::vector<int32_t> lens(num_seqs, 10);
    const std::vector<int32_t> rows(num_seqs, 11);
    const std::vector<kernels::PendingToken> pending(num_seqs, {.row = 17, .from = 18});
    const std::vector<int64_t> slots[2] = {std::vector<int64_t>(num_tokens, 12),
                                           std::vector<int64_t>(num_tokens, 13)};
    const std::vector<int32_t> tables[2] = {std::vector<int32_t>(5 * num_seqs, is_first ? 14 : 24),
                                            std::vector<int32_t>(5 * num_seqs, is_first ? 15 : 25)};
    const std::span<const int64_t> slot_spans[2] = {slots[0], slots[1]};
    const std::span<const int32_t> table_spans[2] = {tables[0], tables[1]};
    const int32_t strides[2] = {5, 5};
    const ForwardBatch step = batch_->upload({.token_ids = ids,
                                              .positions = positions,
                                              .query_start_loc = starts,
                                              .seq_lens = lens,
                                              .logits_indices = rows,
                                              .pending_tokens = pending,
                                              .slot_mapping = slot_spans,
                                              .block_tables = table_spans,
                                              .block_table_strides = strides,
                                              .max_seq_len = is_first ? 65 : 17});
    const std::vector<int32_t> wanted(num_seqs, 16);
    const std::span<const int32_t> wanted_rows = batch_->upload_rows(wanted);
    EXPECT_EQ(downloaded(step.token_ids), ids);
    EXPECT_EQ(downloaded(step.positions), positions);
    EXPECT_EQ(downloaded(step.query_start_loc), starts);
    EXPECT_EQ(downloaded(step.seq_lens), lens);
    EXPECT_EQ(downloaded(step.logits_indices), rows);
    for (const kernels::PendingToken& token : downloaded(step.pending_tokens)) {
      EXPECT_EQ(token.row, 17);
      EXPECT_EQ(token.from, 18);
    }
    EXPECT_EQ(step.pending_tokens.size(), num_seqs);
    EXPECT_EQ(batch_->token_ids(), step.token_ids.data());
    for (size_t group = 0; group < 2; ++group) {
      EXPECT_EQ(downloaded(step.slot_mapping[group]), slots[group]);
      std::vector<int32_t> table = tables[group];
      if (!is_first) std::fill(table.begin() + 2, table.end(), group == 0 ? 14 : 15);
      EXPECT_EQ(downloaded(step.block_tables[group]), table);
    }
    EXPECT_EQ(downloaded(wanted_rows), wanted);
    if (num_seqs == 1) {
      EXPECT_EQ(step.token_ids.data(), token_ids);
      EXPECT_EQ(step.block_tables[1].data(), block_table);
    }
    token_ids = step.token_ids.data();
    block_table = step.block_tables[1].data();
  }
}

TEST_F(CudaDeviceBatchDeathTest, MoreThanWasPlannedForIsNotWrittenOverWhatFollows) {
  const std::vector<int32_t> rows(4);
  EXPECT_DEATH(batch_->upload_rows(rows), "place.room.*16.*12");
}

}  // namespace
}  // namespace sluice
