// SPDX-License-Identifier: Apache-2.0
#include "engine/rank/input_batch.h"

#include <algorithm>

#include "engine/core/status.h"

namespace sluice {

std::vector<InputBatch::Bounds::Table> InputBatch::Bounds::tables_of(
    std::span<const KvGroupSpec> groups, int32_t max_model_len, int32_t block_size) {
  std::vector<Table> tables;
  for (const KvGroupSpec& group : groups) {
    const int32_t per_entry = tokens_per_entry(group, block_size);
    tables.push_back({.tokens_per_entry = per_entry,
                      .max_entries = static_cast<int32_t>(ceil_div(max_model_len, per_entry))});
  }
  return tables;
}

InputBatch::InputBatch(const Bounds& bounds) : bounds_(bounds) {
  const auto max_tokens = static_cast<size_t>(bounds.max_tokens);
  const auto max_seqs = static_cast<size_t>(bounds.max_seqs);
  const size_t num_groups = bounds.tables.size();
  token_ids_.reserve(max_tokens);
  positions_.reserve(max_tokens);
  query_start_loc_.reserve(max_seqs + 1);
  query_start_loc_.push_back(0);
  seq_lens_.reserve(max_seqs);
  replay_start_loc_.reserve(max_seqs + 1);
  replay_start_loc_.push_back(0);
  num_drafts_.reserve(max_seqs);
  logits_indices_.reserve(static_cast<size_t>(bounds.max_rows));
  pending_tokens_.reserve(max_seqs);
  following_.reserve(static_cast<size_t>(bounds.max_rows));
  judged_drafts_.reserve(static_cast<size_t>(bounds.max_rows));
  prompt_rows_.reserve(max_tokens);
  embedded_rows_.reserve(max_tokens);
  slot_mapping_.resize(num_groups);
  for (auto& slots : slot_mapping_) slots.reserve(max_tokens);
  for (const Bounds::Table& table : bounds.tables) {
    block_tables_.emplace_back(max_seqs * static_cast<size_t>(table.max_entries));
    block_table_strides_.push_back(table.max_entries);
  }
  slot_mapping_views_.resize(num_groups);
  block_table_views_.resize(num_groups);
}

void InputBatch::build(const SchedulerOutput& output, std::span<const SlotRows> slots) {
  token_ids_.clear();
  positions_.clear();
  query_start_loc_.assign(1, 0);
  seq_lens_.clear();
  replay_start_loc_.assign(1, 0);
  num_drafts_.clear();
  max_seq_len_ = 0;
  logits_indices_.clear();
  pending_tokens_.clear();
  following_.clear();
  judged_drafts_.clear();
  prompt_rows_.clear();
  embedded_rows_.clear();
  for (auto& mapped : slot_mapping_) mapped.clear();

  std::span<const TokenId> token_ids = output.token_ids;
  std::span<const TokenId> scored_tokens = output.scored_tokens;
  std::span<const BlockId> blocks = output.blocks;
  for (const ScheduledRequest& item : output.scheduled) {
    const auto first_row = static_cast<int32_t>(token_ids_.size()) - item.num_computed_tokens;
    const auto num_rows = static_cast<size_t>(item.num_scheduled_tokens);
    const SlotRows& before = slots[static_cast<size_t>(item.slot)];
    if (item.num_unsure > 0) add_following(item, before);
    add_tokens(item, token_ids.first(num_rows), before);
    token_ids = token_ids.subspan(num_rows);
    for (int32_t position = item.scored.begin; position < item.scored.end; ++position) {
      prompt_rows_.push_back(
          {.id = item.id, .row = first_row + position, .next = scored_tokens.front()});
      scored_tokens = scored_tokens.subspan(1);
    }
    for (int32_t position = item.embedded.begin; position < item.embedded.end; ++position) {
      embedded_rows_.push_back(first_row + position);
    }
    for (int32_t position = item.chosen.begin; position < item.chosen.end; ++position) {
      logits_indices_.push_back(first_row + position);
    }
    for (size_t group = 0; group < block_tables_.size(); ++group) {
      const auto num_blocks =
          static_cast<size_t>(ceil_div(item.end(), bounds_.tables[group].tokens_per_entry));
      add_blocks(item, blocks.first(num_blocks), group);
      blocks = blocks.subspan(num_blocks);
    }
    query_start_loc_.push_back(static_cast<int32_t>(token_ids_.size()));
    seq_lens_.push_back(item.end());
    replay_start_loc_.push_back(replay_start_loc_.back() + item.num_replayed);
    num_drafts_.push_back(item.num_draft_tokens);
    max_seq_len_ = std::max(max_seq_len_, item.end());
  }
  CHECK(token_ids.empty() && scored_tokens.empty() && blocks.empty());
  CHECK_LE(logits_indices_.size(), static_cast<size_t>(bounds_.max_rows));
  for (size_t group = 0; group < block_tables_.size(); ++group) {
    const auto stride = static_cast<size_t>(block_table_strides_[group]);
    slot_mapping_views_[group] = slot_mapping_[group];
    block_table_views_[group] = std::span(block_tables_[group]).first(seq_lens_.size() * stride);
  }
}

void InputBatch::add_tokens(const ScheduledRequest& item,
                            std::span<const TokenId> token_ids,
                            const SlotRows& before) {
  int32_t position = item.num_computed_tokens;
  for (const TokenId token : token_ids) {
    if (token == kInvalidToken && item.num_unsure == 0) {
      pending_tokens_.push_back(
          {.row = static_cast<int32_t>(token_ids_.size()), .from = before.last_row});
    }
    token_ids_.push_back(token == kInvalidToken ? 0 : token);
    positions_.push_back(position++);
  }
}

// Records rows that follow drafts, before the request's tokens. All its rows choose tokens.
void InputBatch::add_following(const ScheduledRequest& item, const SlotRows& before) {
  const auto num_drafts = static_cast<int32_t>(before.drafts.size());
  CHECK_EQ(num_drafts, item.num_unsure);
  CHECK_EQ(item.chosen.size(), item.num_scheduled_tokens);
  const auto request = static_cast<int32_t>(seq_lens_.size());
  for (int32_t i = 0; i < item.num_scheduled_tokens; ++i) {
    following_.push_back({.row = static_cast<int32_t>(token_ids_.size()) + i,
                          .sample = static_cast<int32_t>(logits_indices_.size()) + i,
                          .request = request,
                          .length = i == 0 ? request : -1,
                          .takes_token = i == 0 ? 1 : 0,
                          .from = before.last_row - num_drafts,
                          .drafts = static_cast<int32_t>(judged_drafts_.size()),
                          .num_drafts = num_drafts});
  }
  judged_drafts_.insert(judged_drafts_.end(), before.drafts.begin(), before.drafts.end());
}

void InputBatch::add_blocks(const ScheduledRequest& item,
                            std::span<const BlockId> blocks,
                            size_t group) {
  const auto stride = static_cast<size_t>(block_table_strides_[group]);
  const int32_t per_entry = bounds_.tables[group].tokens_per_entry;
  CHECK_LE(blocks.size(), stride);
  int32_t* const table = block_tables_[group].data() + seq_lens_.size() * stride;
  for (size_t i = 0; i < blocks.size(); ++i) table[i] = blocks[i].value;
  for (int32_t position = item.num_computed_tokens; position < item.end(); ++position) {
    const int64_t block = table[position / per_entry];
    slot_mapping_[group].push_back(block * per_entry + position % per_entry);
  }
}

void InputBatch::resolve(const kernels::ExecContext& host,
                         std::span<const TokenId> chosen,
                         int32_t vocab_size) {
  kernels::take_tokens(host,
                       {.pending = pending_tokens_,
                        .chosen = chosen.data(),
                        .token_ids = token_ids_.data(),
                        .vocab_size = vocab_size});
  pending_tokens_.clear();
  if (following_.empty()) return;
  kernels::PlaceFollowingArgs args = {.following = following_,
                                      .drafts = judged_drafts_.data(),
                                      .chosen = chosen.data(),
                                      .vocab_size = vocab_size,
                                      .token_ids = token_ids_.data(),
                                      .positions = positions_.data(),
                                      .seq_lens = seq_lens_.data(),
                                      .samples = nullptr,
                                      .groups = {},
                                      .num_groups = static_cast<int32_t>(slot_mapping_.size())};
  for (size_t i = 0; i < slot_mapping_.size(); ++i) {
    args.groups[i] = {.slot_mapping = slot_mapping_[i].data(),
                      .block_table = block_tables_[i].data(),
                      .stride = block_table_strides_[i],
                      .tokens_per_entry = bounds_.tables[i].tokens_per_entry};
  }
  kernels::place_following(host, args);
  following_.clear();
}

ForwardBatch InputBatch::view() const {
  const int32_t num_replayed = replay_start_loc_.back();
  const bool has_drafts =
      num_replayed > 0 || std::ranges::any_of(num_drafts_, [](int32_t n) { return n > 0; });
  using Counts = std::span<const int32_t>;
  return {.token_ids = token_ids_,
          .positions = positions_,
          .query_start_loc = query_start_loc_,
          .seq_lens = seq_lens_,
          .logits_indices = logits_indices_,
          .replay_start_loc = has_drafts ? Counts(replay_start_loc_) : Counts(),
          .num_drafts = has_drafts ? Counts(num_drafts_) : Counts(),
          .num_replayed = num_replayed,
          .pending_tokens = pending_tokens_,
          .following = following_,
          .judged_drafts = judged_drafts_,
          .slot_mapping = slot_mapping_views_,
          .block_tables = block_table_views_,
          .block_table_strides = block_table_strides_,
          .max_seq_len = max_seq_len_};
}

}  // namespace sluice
