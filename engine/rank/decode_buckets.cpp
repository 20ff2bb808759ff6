// SPDX-License-Identifier: Apache-2.0
#include "engine/rank/decode_buckets.h"

#include <algorithm>
#include <numeric>

#include "engine/core/status.h"

namespace sluice {
namespace {

constexpr int64_t kNoSlot = -1;

template <typename T>
std::span<const T> padded(std::span<const T> values, size_t size, T with, std::vector<T>& out) {
  out.assign(values.begin(), values.end());
  out.resize(size, with);
  return out;
}

}  // namespace

std::vector<int32_t> DecodeBuckets::sizes_of(const Config& config, int32_t max_rows) {
  if (config.enforce_eager) return {};
  constexpr int32_t kFine = 64;
  constexpr int32_t kMost = 512;
  std::vector<int32_t> sizes = config.cuda_graph_sizes;
  if (sizes.size() < 2) {
    const int32_t most = sizes.empty() ? kMost : sizes.front();
    sizes = {1, 2, 4};
    for (int32_t size = 8; size <= most; size += size < kFine ? 8 : kFine) sizes.push_back(size);
    sizes.push_back(std::min(max_rows, most));
  }
  std::erase_if(sizes, [&](int32_t size) { return size > max_rows; });
  std::ranges::sort(sizes);
  const auto same = std::ranges::unique(sizes);
  sizes.erase(same.begin(), same.end());
  return sizes;
}

DecodeBuckets::DecodeBuckets(std::vector<int32_t> sizes, size_t num_kv_groups, bool has_states)
    : sizes_(std::move(sizes)),
      has_states_(has_states),
      slot_mapping_(num_kv_groups),
      slot_mapping_views_(num_kv_groups),
      block_tables_(num_kv_groups),
      block_table_views_(num_kv_groups) {
  const auto most = static_cast<size_t>(sizes_.empty() ? 0 : sizes_.back());
  token_ids_.reserve(most);
  positions_.reserve(most);
  query_start_loc_.reserve(most + 1);
  seq_lens_.reserve(most);
  logits_indices_.resize(most);
  std::iota(logits_indices_.begin(), logits_indices_.end(), 0);
  for (std::vector<int64_t>& slots : slot_mapping_) slots.reserve(most);
}

std::optional<size_t> DecodeBuckets::find(const ForwardBatch& batch) const {
  const size_t rows = batch.token_ids.size();
  if (rows == 0 || batch.logits_indices.size() != rows) return {};
  if (has_states_ && !batch.num_drafts.empty()) return {};
  const auto found = std::ranges::lower_bound(sizes_, static_cast<int32_t>(rows));
  if (found == sizes_.end()) return {};
  return static_cast<size_t>(found - sizes_.begin());
}

// Makes each row a request that ends with it, on the blocks of its own request.
void DecodeBuckets::split(const ForwardBatch& batch, ForwardBatch& result) {
  seq_lens_.clear();
  for (const int32_t position : batch.positions) seq_lens_.push_back(position + 1);
  query_start_loc_.resize(batch.token_ids.size() + 1);
  std::iota(query_start_loc_.begin(), query_start_loc_.end(), 0);
  for (size_t group = 0; group < block_tables_.size(); ++group) {
    const auto stride = static_cast<size_t>(batch.block_table_strides[group]);
    std::vector<int32_t>& table = block_tables_[group];
    table.clear();
    for (size_t request = 0; request < batch.seq_lens.size(); ++request) {
      const auto own = batch.block_tables[group].subspan(request * stride, stride);
      for (int32_t row = batch.query_start_loc[request]; row < batch.query_start_loc[request + 1];
           ++row) {
        table.insert(table.end(), own.begin(), own.end());
      }
    }
    block_table_views_[group] = table;
  }
  result.block_tables = block_table_views_;
  following_.assign(batch.following.begin(), batch.following.end());
  for (kernels::FollowingRow& row : following_) row.request = row.length = row.row;
  result.following = following_;
}

ForwardBatch DecodeBuckets::pad(const ForwardBatch& batch, size_t bucket) {
  const auto rows = static_cast<size_t>(sizes_[bucket]);
  CHECK_LE(batch.token_ids.size(), rows);
  ForwardBatch result = batch;
  if (batch.seq_lens.size() < batch.token_ids.size()) {
    split(batch, result);
  } else {
    seq_lens_.assign(batch.seq_lens.begin(), batch.seq_lens.end());
    query_start_loc_.assign(batch.query_start_loc.begin(), batch.query_start_loc.end());
  }
  seq_lens_.resize(rows, 0);
  query_start_loc_.resize(rows + 1, batch.query_start_loc.back());
  result.seq_lens = seq_lens_;
  result.query_start_loc = query_start_loc_;
  result.replay_start_loc = {};  // drafts are rows like others here
  result.num_drafts = {};
  result.token_ids = padded(batch.token_ids, rows, TokenId{0}, token_ids_);
  result.positions = padded(batch.positions, rows, 0, positions_);
  result.logits_indices = std::span(logits_indices_).first(rows);
  for (size_t i = 0; i < slot_mapping_.size(); ++i) {
    slot_mapping_views_[i] = padded(batch.slot_mapping[i], rows, kNoSlot, slot_mapping_[i]);
  }
  result.slot_mapping = slot_mapping_views_;
  return result;
}

}  // namespace sluice
