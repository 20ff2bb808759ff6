// SPDX-License-Identifier: Apache-2.0
#include "engine/rank/device_batch.h"

#include <algorithm>
#include <cstring>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

DeviceBatch::Places DeviceBatch::places(const InputBatch::Bounds& bounds) {
  constexpr int64_t kInt = sizeof(int32_t);
  const int64_t tokens = bounds.max_tokens;
  // Each row that chooses a token may become a request of its own (DecodeBuckets).
  const int64_t seqs = std::max(bounds.max_seqs, bounds.max_rows);
  Places places;
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t begin = at;
    at += align_up(bytes, 64);
    return Place{begin, bytes};
  };
  places.token_ids = take(tokens * kInt);
  places.positions = take(tokens * kInt);
  places.query_start_loc = take((seqs + 1) * kInt);
  places.seq_lens = take(seqs * kInt);
  places.logits_indices = take(bounds.max_rows * kInt);
  places.pending_tokens = take(seqs * static_cast<int64_t>(sizeof(kernels::PendingToken)));
  places.following = take(bounds.max_rows * static_cast<int64_t>(sizeof(kernels::FollowingRow)));
  places.judged_drafts = take(bounds.max_rows * kInt);
  places.replay_start_loc = take((seqs + 1) * kInt);
  places.num_drafts = take(seqs * kInt);
  for (size_t i = 0; i < bounds.tables.size(); ++i) {
    places.slot_mapping.push_back(take(tokens * static_cast<int64_t>(sizeof(int64_t))));
  }
  places.rows = take(bounds.max_rows * kInt);
  for (const InputBatch::Bounds::Table& table : bounds.tables) {
    places.block_tables.push_back(take(seqs * table.max_entries * kInt));
  }
  places.end = at;
  return places;
}

int64_t DeviceBatch::bytes(const InputBatch::Bounds& bounds) { return places(bounds).end; }

Expected<DeviceBatch> DeviceBatch::create(kernels::DeviceMemory& memory,
                                          const InputBatch::Bounds& bounds) {
  DeviceBatch batch;
  batch.is_direct_ = memory.is_host();
  if (batch.is_direct_) return batch;
  batch.places_ = places(bounds);
  for (const InputBatch::Bounds::Table& table : bounds.tables) {
    batch.tokens_per_entry_.push_back(table.tokens_per_entry);
  }
  const int64_t total = batch.places_.end;
  SLUICE_TRY(batch.staging_,
             kernels::DeviceBuffer::allocate_pinned(memory, total, "a step's arrays"));
  SLUICE_TRY(batch.device_, kernels::DeviceBuffer::allocate(memory, total, "a step's arrays"));
  batch.sent_ = memory.make_event();
  batch.slot_mapping_.resize(bounds.tables.size());
  batch.block_tables_.resize(bounds.tables.size());
  batch.parts_.reserve(10 + 2 * bounds.tables.size());
  return batch;
}

template <typename T>
std::span<const T> DeviceBatch::stage(const Place& place, std::span<const T> values) {
  CHECK_LE(static_cast<int64_t>(values.size_bytes()), place.room);
  if (!values.empty()) {
    std::memcpy(staging_.data() + place.begin, values.data(), values.size_bytes());
    parts_.push_back({.begin = place.begin, .bytes = static_cast<int64_t>(values.size_bytes())});
  }
  return {reinterpret_cast<const T*>(device_.data() + place.begin), values.size()};
}

void DeviceBatch::send() {
  if (!parts_.empty()) device_.memory().upload_parts(device_.data(), staging_.data(), parts_);
  parts_.clear();
}

// Stages a block table; each request's row has room for the longest possible request.
std::span<const int32_t> DeviceBatch::stage_table(const Place& place,
                                                  const ForwardBatch& host,
                                                  size_t group) {
  const std::span<const int32_t> table = host.block_tables[group];
  CHECK_LE(static_cast<int64_t>(table.size_bytes()), place.room);
  const auto stride = static_cast<size_t>(host.block_table_strides[group]);
  const size_t num_rows = stride == 0 ? 0 : table.size() / stride;
  const auto used = static_cast<size_t>(ceil_div(host.max_seq_len, tokens_per_entry_[group]));
  CHECK_LE(used, stride);
  if (num_rows > 0 && used > 0) {
    auto* const staged = reinterpret_cast<int32_t*>(staging_.data() + place.begin);
    for (size_t row = 0; row < num_rows; ++row) {
      std::copy_n(table.data() + row * stride, used, staged + row * stride);
    }
    constexpr auto kInt = static_cast<int64_t>(sizeof(int32_t));
    parts_.push_back({.begin = place.begin,
                      .bytes = static_cast<int64_t>(used) * kInt,
                      .stride = static_cast<int64_t>(stride) * kInt,
                      .num_rows = static_cast<int64_t>(num_rows)});
  }
  return {reinterpret_cast<const int32_t*>(device_.data() + place.begin), table.size()};
}

TokenId* DeviceBatch::token_ids() const {
  return reinterpret_cast<TokenId*>(device_.data() + places_.token_ids.begin);
}

kernels::PlaceFollowingArgs DeviceBatch::following(const ForwardBatch& batch) const {
  const auto at = [this](const Place& place) { return device_.data() + place.begin; };
  kernels::PlaceFollowingArgs args = {
      .following = batch.following,
      .drafts = batch.judged_drafts.data(),
      .chosen = nullptr,
      .vocab_size = 0,
      .token_ids = token_ids(),
      .positions = reinterpret_cast<int32_t*>(at(places_.positions)),
      .seq_lens = reinterpret_cast<int32_t*>(at(places_.seq_lens)),
      .samples = nullptr,
      .groups = {},
      .num_groups = static_cast<int32_t>(slot_mapping_.size())};
  for (size_t i = 0; i < slot_mapping_.size(); ++i) {
    args.groups[i] = {.slot_mapping = reinterpret_cast<int64_t*>(at(places_.slot_mapping[i])),
                      .block_table = batch.block_tables[i].data(),
                      .stride = batch.block_table_strides[i],
                      .tokens_per_entry = tokens_per_entry_[i]};
  }
  return args;
}

ForwardBatch DeviceBatch::upload(const ForwardBatch& host) {
  if (is_direct_) return host;
  sent_->wait();
  CHECK_EQ(host.slot_mapping.size(), slot_mapping_.size());
  CHECK_EQ(host.block_tables.size(), block_tables_.size());
  const ForwardBatch batch = {
      .token_ids = stage(places_.token_ids, host.token_ids),
      .positions = stage(places_.positions, host.positions),
      .query_start_loc = stage(places_.query_start_loc, host.query_start_loc),
      .seq_lens = stage(places_.seq_lens, host.seq_lens),
      .logits_indices = stage(places_.logits_indices, host.logits_indices),
      .replay_start_loc = stage(places_.replay_start_loc, host.replay_start_loc),
      .num_drafts = stage(places_.num_drafts, host.num_drafts),
      .num_replayed = host.num_replayed,
      .pending_tokens = stage(places_.pending_tokens, host.pending_tokens),
      .following = stage(places_.following, host.following),
      .judged_drafts = stage(places_.judged_drafts, host.judged_drafts),
      .slot_mapping = slot_mapping_,
      .block_tables = block_tables_,
      .block_table_strides = host.block_table_strides,
      .max_seq_len = host.max_seq_len};
  for (size_t i = 0; i < slot_mapping_.size(); ++i) {
    slot_mapping_[i] = stage(places_.slot_mapping[i], host.slot_mapping[i]);
    block_tables_[i] = stage_table(places_.block_tables[i], host, i);
  }
  send();
  sent_->record();
  return batch;
}

std::span<const int32_t> DeviceBatch::upload_rows(std::span<const int32_t> rows) {
  if (is_direct_) return rows;
  sent_->wait();
  const std::span<const int32_t> staged = stage(places_.rows, rows);
  send();
  sent_->record();
  return staged;
}

}  // namespace sluice
