// SPDX-License-Identifier: Apache-2.0
// Jobs of ranks as bytes: what rank 0 writes is what a follower reads, and nothing else is taken.
#include "engine/rank/rank_frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace sluice {
namespace {

template <typename T>
std::vector<T> list(std::span<const T> span) {
  return {span.begin(), span.end()};
}

const std::vector<KvGroupSpec> kGroups = {
    {.kind = KvGroupKind::kFull, .num_blocks = 40},
    {.kind = KvGroupKind::kWindow, .window = 12, .num_blocks = 30}};

RankFrameReader::Bounds bounds() {
  RankFrameReader::Bounds made;
  made.rank.step = {.max_tokens = 16, .max_seqs = 3, .max_logits = 3};
  made.rank.batch = {.max_tokens = 16,
                     .max_seqs = 3,
                     .max_rows = 3,
                     .tables = InputBatch::Bounds::tables_of(kGroups, /*max_model_len=*/72, 8)};
  made.rank.max_model_len = 72;
  made.vocab_size = 100;
  made.groups = kGroups;
  return made;
}

SchedulerOutput decision() {
  SchedulerOutput output;
  ScheduledRequest first;
  first.num_computed_tokens = 30;
  first.num_scheduled_tokens = 4;
  first.num_replayed = 2;
  ScheduledRequest second;
  second.num_scheduled_tokens = 2;
  second.num_draft_tokens = 1;
  second.chosen = {1, 2};
  output.scheduled = {first, second};
  output.token_ids = {1, 2, 3, 4, 5, 99};
  for (const int32_t block : {10, 11, 12, 13, 14, -1, -1, 22, 23, 24, 15, 25}) {
    output.blocks.push_back(BlockId{block});
  }
  return output;
}

class RankFrames : public ::testing::Test {
 protected:
  RankFrames() {
    batch_.build(decision(), std::vector<InputBatch::SlotRows>(3));
    step_ = batch_.view();
  }

  // The frame of the step with these changes.
  std::vector<std::byte> frame() {
    const RankJob job = {.batch = &step_, .copies = copies_};
    return list(writer_.write(job));
  }

  static Expected<const RankJob*> read(RankFrameReader& reader, std::span<const std::byte> frame) {
    RankFrameHeader header;
    std::memcpy(&header, frame.data(), sizeof(header));
    SLUICE_TRY_VOID(reader.check(header));
    return reader.read(header, frame.subspan(sizeof(header)));
  }

  // The entries that a token of the request has; the rest is not sent.
  static std::vector<int32_t> entries_of(const ForwardBatch& step, size_t group, size_t request) {
    const auto used = static_cast<size_t>((step.seq_lens[request] + 7) / 8);
    const auto stride = static_cast<size_t>(step.block_table_strides[group]);
    return list(step.block_tables[group].subspan(request * stride, used));
  }

  InputBatch batch_{bounds().rank.batch};
  ForwardBatch step_;
  std::vector<KvBlockCopy> copies_ = {{.group = 1, .from = BlockId{3}, .to = BlockId{29}}};
  RankFrameWriter writer_{bounds().rank.batch};
  RankFrameReader reader_{bounds()};
};

TEST_F(RankFrames, AStepIsReadAsItWasWritten) {
  const std::vector<std::byte> bytes = frame();
  EXPECT_LE(bytes.size() - sizeof(RankFrameHeader), reader_.max_bytes());
  const auto job = read(reader_, bytes);
  ASSERT_TRUE(job) << job.error().message;
  const ForwardBatch& step = *(*job)->batch;
  EXPECT_EQ(list(step.token_ids), list(step_.token_ids));
  EXPECT_EQ(list(step.positions), list(step_.positions));
  EXPECT_EQ(list(step.query_start_loc), list(step_.query_start_loc));
  EXPECT_EQ(list(step.seq_lens), list(step_.seq_lens));
  EXPECT_EQ(list(step.logits_indices), list(step_.logits_indices));
  EXPECT_EQ(list(step.replay_start_loc), list(step_.replay_start_loc));
  EXPECT_EQ(list(step.num_drafts), list(step_.num_drafts));
  EXPECT_EQ(step.max_seq_len, step_.max_seq_len);
  EXPECT_EQ(list((*job)->copies), copies_);
  for (size_t group = 0; group < kGroups.size(); ++group) {
    EXPECT_EQ(list(step.slot_mapping[group]), list(step_.slot_mapping[group]));
    for (size_t i = 0; i < step.seq_lens.size(); ++i) {
      EXPECT_EQ(entries_of(step, group, i), entries_of(step_, group, i));
    }
  }
}

TEST_F(RankFrames, RowsOfTheStepFollowIt) {
  ASSERT_TRUE(read(reader_, frame()));
  const std::vector<int32_t> rows = {5, 0};
  const auto named =
      read(reader_, list(writer_.write({.kind = RankJob::Kind::kLogits, .rows = std::span(rows)})));
  ASSERT_TRUE(named) << named.error().message;
  EXPECT_EQ(list(*(*named)->rows), rows);
  const auto all = read(reader_, list(writer_.write({.kind = RankJob::Kind::kStates})));
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_FALSE((*all)->rows.has_value());
  const std::vector<int32_t> outside = {6};
  EXPECT_FALSE(read(
      reader_, list(writer_.write({.kind = RankJob::Kind::kLogits, .rows = std::span(outside)}))));
}

// A first stage has later steps' layers before the rows of an earlier, longer one.
TEST_F(RankFrames, RowsOfAnEarlierStepStayWithinAnyStep) {
  RankFrameReader::Bounds earlier = bounds();
  earlier.takes_earlier_rows = true;
  RankFrameReader reader(earlier);
  ASSERT_TRUE(read(reader, frame()));
  std::vector<int32_t> rows = {earlier.rank.batch.max_tokens - 1};
  const auto taken = [&] {
    const RankJob job = {.kind = RankJob::Kind::kLogits, .rows = std::span(rows)};
    return read(reader, list(writer_.write(job))).has_value();
  };
  EXPECT_TRUE(taken());
  ++rows.front();
  EXPECT_FALSE(taken());
}

TEST_F(RankFrames, AFrameThatIsLostRepeatedOrChangedIsRefused) {
  const std::vector<std::byte> first = frame();
  const std::vector<std::byte> second = frame();
  EXPECT_FALSE(read(reader_, second));  // the first is lost
  ASSERT_TRUE(read(reader_, first));
  EXPECT_FALSE(read(reader_, first));
  for (size_t at = 0; at < second.size(); ++at) {
    std::vector<std::byte> changed = second;
    changed[at] ^= std::byte{1};
    RankFrameReader reader{bounds()};
    ASSERT_TRUE(read(reader, first));
    EXPECT_FALSE(read(reader, changed)) << at;
  }
  ASSERT_TRUE(read(reader_, second));
}

// A follower whose rank 0 has other bounds must not read or write outside of its arrays.
TEST_F(RankFrames, ValuesOutsideOfTheBoundsAreRefused) {
  std::vector<TokenId> tokens = list(step_.token_ids);
  std::vector<int32_t> positions = list(step_.positions);
  std::vector<int32_t> lengths = list(step_.seq_lens);
  std::vector<int32_t> starts = list(step_.query_start_loc);
  const auto refused = [&](auto change) {
    const ForwardBatch step = step_;
    const std::vector<KvBlockCopy> copies = copies_;
    change();
    RankFrameWriter writer(bounds().rank.batch);
    RankFrameReader reader(bounds());
    const bool is_refused = !read(reader, list(writer.write({.batch = &step_, .copies = copies_})));
    step_ = step;
    copies_ = copies;
    return is_refused;
  };
  EXPECT_FALSE(refused([] {}));
  tokens[2] = 100;
  EXPECT_TRUE(refused([&] { step_.token_ids = tokens; }));
  positions[1] = 72;
  EXPECT_TRUE(refused([&] { step_.positions = positions; }));
  lengths[0] = -1;
  EXPECT_TRUE(refused([&] { step_.seq_lens = lengths; }));
  starts[1] = 7;
  EXPECT_TRUE(refused([&] { step_.query_start_loc = starts; }));
  // More than the tokens in front, and more than the rows behind the first.
  const std::vector<int32_t> replayed = {0, 30, 30};
  EXPECT_TRUE(refused([&] { step_.replay_start_loc = replayed; }));
  const std::vector<int32_t> drafts = {0, 2};
  EXPECT_TRUE(refused([&] { step_.num_drafts = drafts; }));
  EXPECT_TRUE(refused([&] { step_.num_drafts = {}; }));
  EXPECT_TRUE(refused([&] { copies_.front().group = 2; }));
  EXPECT_TRUE(refused([&] { copies_.front().to = BlockId{30}; }));
  std::vector<int64_t> slots = list(step_.slot_mapping[0]);
  slots[3] = 40 * 8;
  const std::vector<std::span<const int64_t>> mappings = {slots, step_.slot_mapping[1]};
  EXPECT_TRUE(refused([&] { step_.slot_mapping = mappings; }));
  std::vector<int32_t> table = list(step_.block_tables[1]);
  table[4] = 30;
  const std::vector<std::span<const int32_t>> tables = {step_.block_tables[0], table};
  EXPECT_TRUE(refused([&] { step_.block_tables = tables; }));
  const std::vector<kernels::PendingToken> pending = {{.row = 1, .from = 0}};
  EXPECT_TRUE(refused([&] { step_.pending_tokens = pending; }));  // on a CPU
}

// Each row of such a step chooses a token, and some wait for one of the step before.
TEST_F(RankFrames, AStepOnDevicesIsReadAsItWasWritten) {
  RankFrameReader::Bounds devices = bounds();
  devices.recorded_rows = {2, 6, 8};
  devices.num_chosen = 3;
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5};
  step_.logits_indices = all;
  devices.rank.batch.max_rows = 6;
  const auto read_with = [&](kernels::PendingToken pending, std::optional<size_t> bucket) {
    const std::vector<kernels::PendingToken> list_of = {{.row = 0, .from = 2}, pending};
    step_.pending_tokens = list_of;
    RankFrameWriter writer(bounds().rank.batch);
    RankFrameReader reader(devices);
    const auto job = read(reader, list(writer.write({.batch = &step_, .bucket = bucket})));
    if (!job) return false;
    EXPECT_EQ((*job)->bucket, bucket);
    const auto found = (*job)->batch->pending_tokens;
    EXPECT_EQ(found.size(), 2U);
    EXPECT_EQ(found.back().row, pending.row);
    EXPECT_EQ(found.back().from, pending.from);
    const ForwardBatch& step = *(*job)->batch;
    // A recorded step reads tables where they were when it was recorded.
    const bool has_strides = list(step.block_table_strides) == list(step_.block_table_strides);
    EXPECT_TRUE(has_strides || !bucket);
    for (size_t group = 0; group < kGroups.size(); ++group) {
      for (size_t i = 0; i < step.seq_lens.size(); ++i) {
        EXPECT_EQ(entries_of(step, group, i), entries_of(step_, group, i));
      }
    }
    return true;
  };
  EXPECT_TRUE(read_with({.row = 5, .from = 0}, std::nullopt));
  EXPECT_TRUE(read_with({.row = 5, .from = 0}, 1));
  EXPECT_TRUE(read_with({.row = 5, .from = 0}, 2));
  EXPECT_FALSE(read_with({.row = 5, .from = 0}, 0));  // more rows than it has
  EXPECT_FALSE(read_with({.row = 5, .from = 0}, 3));
  EXPECT_FALSE(read_with({.row = 6, .from = 0}, 1));
  EXPECT_FALSE(read_with({.row = -1, .from = 0}, 1));
  EXPECT_FALSE(read_with({.row = 5, .from = 3}, 1));
  EXPECT_FALSE(read_with({.row = 5, .from = -1}, 1));
  step_.logits_indices = step_.logits_indices.first(5);
  EXPECT_FALSE(read_with({.row = 5, .from = 0}, 1));  // a row chooses nothing
}

}  // namespace
}  // namespace sluice
