// SPDX-License-Identifier: Apache-2.0
#include "engine/input_batch.h"

#include <algorithm>

#include "engine/core/status.h"

namespace sluice {

InputBatch::InputBatch(const Bounds& bounds) : bounds_(bounds) {
  const auto max_tokens = static_cast<size_t>(bounds.max_tokens);
  const auto max_seqs = static_cast<size_t>(bounds.max_seqs);
  const auto num_groups = static_cast<size_t>(bounds.num_groups);
  token_ids_.reserve(max_tokens);
  positions_.reserve(max_tokens);
  query_start_loc_.reserve(max_seqs + 1);
  query_start_loc_.push_back(0);
  seq_lens_.reserve(max_seqs);
  logits_indices_.reserve(max_seqs);
  open_tokens_.reserve(max_seqs);
  prompt_rows_.reserve(max_tokens);
  slot_mapping_.resize(num_groups);
  for (auto& slots : slot_mapping_) slots.reserve(max_tokens);
  block_tables_.assign(
      num_groups, std::vector<int32_t>(max_seqs * static_cast<size_t>(bounds.max_blocks_per_seq)));
  slot_mapping_views_.resize(num_groups);
  block_table_views_.resize(num_groups);
}

void InputBatch::build(const SchedulerOutput& output,
                       const Scheduler& scheduler,
                       const KvCacheManager& kv,
                       std::span<const int32_t> row_of_slot) {
  token_ids_.clear();
  positions_.clear();
  query_start_loc_.assign(1, 0);
  seq_lens_.clear();
  max_seq_len_ = 0;
  logits_indices_.clear();
  open_tokens_.clear();
  prompt_rows_.clear();
  for (auto& slots : slot_mapping_) slots.clear();

  const auto stride = static_cast<size_t>(bounds_.max_blocks_per_seq);
  for (const ScheduledRequest& item : output.scheduled) {
    const Request* request = scheduler.find(item.id);
    CHECK(request != nullptr);
    const int32_t begin = item.num_computed_tokens;
    const int32_t end = begin + item.num_scheduled_tokens;
    const int32_t num_known = request->num_tokens();
    CHECK_LE(end, num_known + 1);
    add_prompt_rows(*request, begin, end);
    for (int32_t position = begin; position < end; ++position) {
      const bool is_open = position == num_known;
      if (is_open) {
        open_tokens_.push_back({.row = static_cast<int32_t>(token_ids_.size()),
                                .from = row_of_slot[static_cast<size_t>(item.slot)]});
      }
      token_ids_.push_back(is_open ? 0 : request->tokens[static_cast<size_t>(position)]);
      positions_.push_back(position);
    }
    const size_t row = seq_lens_.size();
    for (size_t group = 0; group < block_tables_.size(); ++group) {
      const std::span<const BlockId> blocks = kv.block_table(item.id, static_cast<int32_t>(group));
      int32_t* table = block_tables_[group].data() + row * stride;
      const auto num_blocks = static_cast<size_t>(ceil_div(end, bounds_.block_size));
      CHECK_LE(num_blocks, blocks.size());
      for (size_t i = 0; i < num_blocks; ++i) table[i] = blocks[i].value;
      for (int32_t position = begin; position < end; ++position) {
        const int64_t block = table[position / bounds_.block_size];
        slot_mapping_[group].push_back(block * bounds_.block_size + position % bounds_.block_size);
      }
    }
    query_start_loc_.push_back(static_cast<int32_t>(token_ids_.size()));
    seq_lens_.push_back(end);
    max_seq_len_ = std::max(max_seq_len_, end);
    if (item.samples) logits_indices_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
  }
  for (size_t group = 0; group < block_tables_.size(); ++group) {
    slot_mapping_views_[group] = slot_mapping_[group];
    block_table_views_[group] = std::span(block_tables_[group]).first(seq_lens_.size() * stride);
  }
}

void InputBatch::resolve(const kernels::ExecContext& host,
                         std::span<const TokenId> chosen,
                         int32_t vocab_size) {
  kernels::take_tokens(host,
                       {.open = open_tokens_,
                        .chosen = chosen.data(),
                        .token_ids = token_ids_.data(),
                        .vocab_size = vocab_size});
  open_tokens_.clear();
}

void InputBatch::add_prompt_rows(const Request& request, int32_t begin, int32_t end) {
  if (!request.scores_prompt) return;
  const auto first_row = static_cast<int32_t>(token_ids_.size());
  const int32_t last = std::min(end, request.num_prompt_tokens - 1);
  for (int32_t i = std::max(begin, request.num_scored_tokens); i < last; ++i) {
    prompt_rows_.push_back({.id = request.id,
                            .row = first_row + i - begin,
                            .next = request.tokens[static_cast<size_t>(i) + 1]});
  }
}

ForwardBatch InputBatch::view() const {
  return {.token_ids = token_ids_,
          .positions = positions_,
          .query_start_loc = query_start_loc_,
          .seq_lens = seq_lens_,
          .logits_indices = logits_indices_,
          .open_tokens = open_tokens_,
          .slot_mapping = slot_mapping_views_,
          .block_tables = block_table_views_,
          .block_table_stride = bounds_.max_blocks_per_seq,
          .max_seq_len = max_seq_len_};
}

}  // namespace sluice
