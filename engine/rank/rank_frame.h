// SPDX-License-Identifier: Apache-2.0
// A job of ranks (model_rank.h) as bytes, for ranks in other processes: the whole step that rank 0
// has decided, so that a follower decides nothing. Numbers are in the machine's own order, which is
// little-endian wherever this program runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/status.h"
#include "engine/rank/model_rank.h"

namespace sluice {

// In front of each frame's payload.
struct RankFrameHeader {
  static constexpr uint32_t kMagic = 0x4b524c53;  // "SLRK"

  uint32_t magic = kMagic;
  uint32_t kind = 0;    // RankJob::Kind
  uint64_t number = 0;  // of the job, from 1
  uint64_t bytes = 0;   // of the payload
  uint64_t digest = 0;  // XXH3 over what is above and the payload, seeded by the frame before's
};

// Rank 0's side. One thread.
class RankFrameWriter {
 public:
  explicit RankFrameWriter(const InputBatch::Bounds& batch);

  // Returns header and payload of the next job, valid until the next call. The job has no rows
  // after unjudged drafts, which only a single rank places.
  std::span<const std::byte> write(const RankJob& job);

 private:
  std::span<const std::byte> seal(uint32_t kind);
  void append_table(const ForwardBatch& step, size_t group);

  std::vector<int32_t> tokens_per_entry_;  // by KV group
  std::vector<std::byte> bytes_;
  std::vector<int32_t> table_;  // scratch
  uint64_t number_ = 0;
  uint64_t digest_ = 0;
};

// A follower's side. One thread.
class RankFrameReader {
 public:
  // What valid jobs stay within.
  struct Bounds {
    ModelRank::Bounds rank;
    int32_t vocab_size = 0;
    std::vector<KvGroupSpec> groups;  // with num_blocks
    // Rows of each recorded step, and tokens of a step that the next one may still wait for. There
    // are none on a CPU, where the host has them before a step runs.
    std::vector<int32_t> recorded_rows = {};
    int32_t num_chosen = 0;
    // Rows may be of a step before the last one, of which rank 0 has the states from another stage.
    bool takes_earlier_rows = false;
  };

  explicit RankFrameReader(Bounds bounds);

  // The largest payload of a valid job.
  [[nodiscard]] uint64_t max_bytes() const { return max_bytes_; }

  // Checks a header. kDataLoss: not the next frame of this group.
  Expected<void> check(const RankFrameHeader& header) const;
  // Returns the job of a checked header, valid until the next call. kDataLoss: the payload is not
  // what rank 0 wrote, or a value lies outside of the bounds.
  Expected<const RankJob*> read(const RankFrameHeader& header, std::span<const std::byte> payload);

 private:
  Expected<void> read_layers(std::span<const std::byte> payload);
  Expected<void> check_step(int32_t longest);
  Expected<void> check_device_step();
  void spread_table(size_t group);
  [[nodiscard]] bool are_drafts_valid() const;
  [[nodiscard]] bool are_blocks_valid(size_t group) const;
  [[nodiscard]] int64_t max_copies() const;

  Bounds bounds_;
  uint64_t max_bytes_ = 0;
  uint64_t number_ = 0;
  uint64_t digest_ = 0;
  RankJob job_;
  ForwardBatch step_;
  std::vector<TokenId> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> query_start_loc_;
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> logits_indices_;
  std::vector<int32_t> replay_start_loc_;
  std::vector<int32_t> num_drafts_;
  std::vector<kernels::PendingToken> pending_tokens_;
  std::vector<int32_t> recorded_;  // the step to replay, if any
  std::vector<std::vector<int64_t>> slot_mapping_;
  std::vector<std::vector<int32_t>> block_tables_;
  std::vector<std::span<const int64_t>> slot_mapping_views_;
  std::vector<std::span<const int32_t>> block_table_views_;
  std::vector<int32_t> block_table_strides_;
  std::vector<KvBlockCopy> copies_;
  std::vector<int32_t> rows_;
};

}  // namespace sluice
