// SPDX-License-Identifier: Apache-2.0
// A step's decision as flat arrays that kernels read. Sized once; filled by the engine thread, then
// read and resolved by the thread that runs the step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/types.h"
#include "engine/models/model.h"
#include "kernels/sampling.h"
#include "scheduler/scheduler_output.h"

namespace sluice {

// A prompt row that gives the log-probability of the prompt's next token.
struct PromptRow {
  RequestId id;
  int32_t row = 0;  // index in the step
  TokenId next = kInvalidToken;
};

class InputBatch {
 public:
  struct Bounds {
    int32_t max_tokens = 0;
    int32_t max_seqs = 0;
    int32_t max_rows = 0;  // rows that choose a token

    // The block table of one KV group.
    struct Table {
      int32_t tokens_per_entry = 0;
      int32_t max_entries = 0;  // per request
    };

    std::vector<Table> tables = {};  // by group

    // Block tables of these groups for requests of at most `max_model_len` tokens.
    static std::vector<Table> tables_of(std::span<const KvGroupSpec> groups,
                                        int32_t max_model_len,
                                        int32_t block_size);
  };

  explicit InputBatch(const Bounds& bounds);

  // A slot's rows in the previous step: its last chosen row, and the drafts in front of it.
  struct SlotRows {
    int32_t last_row = 0;
    std::span<const TokenId> drafts = {};
  };

  // Builds the arrays of `output`. Tokens that the previous step has yet to choose are left
  // pending, and rows after unjudged drafts are placed as if all are accepted. `slots`: each
  // slot's rows then.
  void build(const SchedulerOutput& output, std::span<const SlotRows> slots);
  // Fills pending tokens and corrects such rows from what the previous step chose, by chosen row;
  // kInvalidToken where it chose none.
  void resolve(const kernels::ExecContext& host,
               std::span<const TokenId> chosen,
               int32_t vocab_size);

  [[nodiscard]] ForwardBatch view() const;

  // Prompt rows to score that no earlier step has given: by request, in order.
  [[nodiscard]] std::span<const PromptRow> prompt_rows() const { return prompt_rows_; }

  // Rows whose states are wanted: by request, in order.
  [[nodiscard]] std::span<const int32_t> embedded_rows() const { return embedded_rows_; }

 private:
  void add_tokens(const ScheduledRequest& item,
                  std::span<const TokenId> token_ids,
                  const SlotRows& before);
  void add_following(const ScheduledRequest& item, const SlotRows& before);
  void add_blocks(const ScheduledRequest& item, std::span<const BlockId> blocks, size_t group);

  Bounds bounds_;

  std::vector<TokenId> token_ids_;
  std::vector<kernels::PendingToken> pending_tokens_;
  std::vector<kernels::FollowingRow> following_;
  std::vector<TokenId> judged_drafts_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> query_start_loc_;
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> replay_start_loc_;
  std::vector<int32_t> num_drafts_;
  int32_t max_seq_len_ = 0;
  std::vector<int32_t> logits_indices_;
  std::vector<std::vector<int64_t>> slot_mapping_;  // [group][token]
  std::vector<std::vector<int32_t>> block_tables_;  // [group][request * stride + entry]
  std::vector<std::span<const int64_t>> slot_mapping_views_;
  std::vector<std::span<const int32_t>> block_table_views_;
  std::vector<int32_t> block_table_strides_;  // by group
  std::vector<PromptRow> prompt_rows_;
  std::vector<int32_t> embedded_rows_;
};

}  // namespace sluice
