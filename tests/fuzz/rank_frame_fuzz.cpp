// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a job from rank 0, under a digest that is right or wrong: what is taken lies
// within the follower's arrays, so that no layer can read or write outside of them.
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/rank/rank_frame.h"
#include "tests/fuzz/target.h"

namespace {

using sluice::RankFrameHeader;
using sluice::RankFrameReader;

const std::vector<sluice::KvGroupSpec> kGroups = {
    {.kind = sluice::KvGroupKind::kFull, .num_blocks = 40},
    {.kind = sluice::KvGroupKind::kWindow, .window = 12, .num_blocks = 30}};

RankFrameReader::Bounds bounds() {
  RankFrameReader::Bounds made;
  made.rank.step = {.max_tokens = 16, .max_seqs = 3, .max_logits = 3};
  made.rank.batch = {.max_tokens = 16,
                     .max_seqs = 3,
                     .max_rows = 3,
                     .tables = sluice::InputBatch::Bounds::tables_of(kGroups, 72, 8)};
  made.rank.max_model_len = 72;
  made.vocab_size = 100;
  made.groups = kGroups;
  made.recorded_rows = {1, 2};
  made.num_chosen = 3;
  return made;
}

void check_step(const sluice::ForwardBatch& step) {
  CHECK_EQ(step.positions.size(), step.token_ids.size());
  CHECK_EQ(step.query_start_loc.size(), step.seq_lens.size() + 1);
  for (const auto token : step.token_ids) CHECK(token >= 0 && token < 100);
  for (const sluice::kernels::PendingToken& pending : step.pending_tokens) {
    CHECK(pending.from >= 0 && pending.from < 3);
    CHECK_LT(static_cast<size_t>(pending.row), step.token_ids.size());
  }
  for (const auto row : step.logits_indices)
    CHECK_LT(static_cast<size_t>(row), step.token_ids.size());
  for (size_t group = 0; group < kGroups.size(); ++group) {
    CHECK_EQ(step.slot_mapping[group].size(), step.token_ids.size());
    for (const int64_t slot : step.slot_mapping[group]) {
      CHECK(slot >= 0 && slot < int64_t{kGroups[group].num_blocks} * 8);
    }
    const auto stride = static_cast<size_t>(step.block_table_strides[group]);
    CHECK_EQ(step.block_tables[group].size(), step.seq_lens.size() * stride);
    for (size_t i = 0; i < step.seq_lens.size(); ++i) {
      for (int32_t entry = 0; entry * 8 < step.seq_lens[i]; ++entry) {
        const int32_t block = step.block_tables[group][i * stride + static_cast<size_t>(entry)];
        CHECK(block >= -1 && block < kGroups[group].num_blocks);
      }
    }
  }
}

int rank_frame_input(const uint8_t* data, size_t size) {
  RankFrameReader reader(bounds());
  std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  uint64_t digest = 0;
  for (uint64_t number = 1; bytes.size() >= 3; ++number) {
    RankFrameHeader header;
    header.kind = std::to_integer<uint32_t>(bytes[0]) % 4;
    header.number = number;
    header.bytes = std::min<size_t>(std::to_integer<size_t>(bytes[1]) * 4, bytes.size() - 2);
    const bool is_right = std::to_integer<int>(bytes[0]) < 240;
    bytes = bytes.subspan(2);
    const auto payload = bytes.first(static_cast<size_t>(header.bytes));
    bytes = bytes.subspan(payload.size());
    digest = XXH3_64bits_withSeed(
        payload.data(),
        payload.size(),
        XXH3_64bits_withSeed(&header, offsetof(RankFrameHeader, digest), digest));
    header.digest = is_right ? digest : digest + 1;
    if (!reader.check(header)) return 0;
    const auto job = reader.read(header, payload);
    CHECK(is_right || !job);
    if (!job) return 0;
    if ((*job)->batch != nullptr) check_step(*(*job)->batch);
    if ((*job)->bucket) {
      CHECK_LT(*(*job)->bucket, size_t{2});
      CHECK_LE((*job)->batch->token_ids.size(), *(*job)->bucket + 1);
    }
  }
  return 0;
}

}  // namespace

const sluice::fuzz::Target rank_frame_target("rank_frame_fuzz", rank_frame_input);
