// SPDX-License-Identifier: Apache-2.0
#include "engine/rank/rank_frame.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

namespace sluice {
namespace {

// Arrays follow each other, each after its length and padded to eight bytes.
constexpr size_t kAlignment = 8;

template <typename T>
void append(std::vector<std::byte>& out, std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const uint64_t count = values.size();
  const size_t at = out.size();
  const auto bytes = static_cast<size_t>(align_up(static_cast<int64_t>(values.size_bytes()), 8));
  out.resize(at + sizeof(count) + bytes);
  std::memcpy(out.data() + at, &count, sizeof(count));
  if (count > 0) std::memcpy(out.data() + at + sizeof(count), values.data(), values.size_bytes());
}

// Takes the next array, of at most `most` values. False: there is no such array.
template <typename T>
bool take(std::span<const std::byte>& in, size_t most, std::vector<T>& out) {
  uint64_t count = 0;
  if (in.size() < sizeof(count)) return false;
  std::memcpy(&count, in.data(), sizeof(count));
  in = in.subspan(sizeof(count));
  if (count > most) return false;
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  const size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (in.size() < padded) return false;
  out.resize(static_cast<size_t>(count));
  if (count > 0) std::memcpy(out.data(), in.data(), bytes);
  in = in.subspan(padded);
  return true;
}

uint64_t digest_of(const RankFrameHeader& header,
                   std::span<const std::byte> payload,
                   uint64_t before) {
  const uint64_t seed = XXH3_64bits_withSeed(&header, offsetof(RankFrameHeader, digest), before);
  return XXH3_64bits_withSeed(payload.data(), payload.size(), seed);
}

int32_t entries_of(int32_t num_tokens, int32_t per_entry) {
  return static_cast<int32_t>(ceil_div(num_tokens, per_entry));
}

template <typename T>
bool all_within(std::span<const T> values, T first, T end) {
  return std::ranges::all_of(values, [=](T value) { return first <= value && value < end; });
}

tl::unexpected<Error> broken(const std::string& what) {
  return make_error(ErrorCode::kDataLoss, "a job from rank 0: " + what);
}

}  // namespace

RankFrameWriter::RankFrameWriter(const InputBatch::Bounds& batch) {
  for (const auto& table : batch.tables) tokens_per_entry_.push_back(table.tokens_per_entry);
}

std::span<const std::byte> RankFrameWriter::write(const RankJob& job) {
  bytes_.resize(sizeof(RankFrameHeader));
  if (job.kind == RankJob::Kind::kLayers) {
    const ForwardBatch& step = *job.batch;
    CHECK(step.following.empty());
    const auto bucket = static_cast<int32_t>(job.bucket.value_or(0));
    append(bytes_, step.token_ids);
    append(bytes_, step.positions);
    append(bytes_, step.query_start_loc);
    append(bytes_, step.seq_lens);
    append(bytes_, step.logits_indices);
    append(bytes_, step.replay_start_loc);
    append(bytes_, step.num_drafts);
    append(bytes_, step.pending_tokens);
    append(bytes_, std::span<const int32_t>(&bucket, job.bucket ? 1 : 0));
    append(bytes_, job.copies);
    for (size_t group = 0; group < step.slot_mapping.size(); ++group) {
      append(bytes_, step.slot_mapping[group]);
      append_table(step, group);
    }
  } else {
    // Without rows it means all that choose a token, which the step has named.
    const int32_t has_rows = job.rows ? 1 : 0;
    append(bytes_, std::span<const int32_t>(&has_rows, 1));
    append(bytes_, job.rows.value_or(std::span<const int32_t>()));
  }
  return seal(static_cast<uint32_t>(job.kind));
}

std::span<const std::byte> RankFrameWriter::seal(uint32_t kind) {
  RankFrameHeader header;
  header.kind = kind;
  header.number = ++number_;
  header.bytes = bytes_.size() - sizeof(header);
  header.digest = digest_ = digest_of(header, std::span(bytes_).subspan(sizeof(header)), digest_);
  std::memcpy(bytes_.data(), &header, sizeof(header));
  return bytes_;
}

// Appends each request's entries up to the longest one's last.
void RankFrameWriter::append_table(const ForwardBatch& step, size_t group) {
  const std::span<const int32_t> table = step.block_tables[group];
  const auto stride = static_cast<size_t>(step.block_table_strides[group]);
  const auto used = static_cast<size_t>(entries_of(step.max_seq_len, tokens_per_entry_[group]));
  CHECK_LE(used, stride);
  table_.clear();
  for (size_t i = 0; i < step.seq_lens.size(); ++i) {
    const auto row = table.subspan(i * stride, used);
    table_.insert(table_.end(), row.begin(), row.end());
  }
  append<int32_t>(bytes_, table_);
}

RankFrameReader::RankFrameReader(Bounds bounds) : bounds_(std::move(bounds)) {
  const InputBatch::Bounds& batch = bounds_.rank.batch;
  const size_t num_groups = batch.tables.size();
  CHECK_EQ(bounds_.groups.size(), num_groups);
  slot_mapping_.resize(num_groups);
  block_tables_.resize(num_groups);
  slot_mapping_views_.resize(num_groups);
  block_table_views_.resize(num_groups);
  block_table_strides_.resize(num_groups);
  const auto array = [](int64_t count, size_t width) {
    return static_cast<uint64_t>(kAlignment + align_up(count * static_cast<int64_t>(width), 8));
  };
  max_bytes_ = 2 * array(batch.max_tokens, sizeof(int32_t)) +
               4 * array(batch.max_seqs + 1, sizeof(int32_t)) +
               array(batch.max_rows, sizeof(int32_t)) + array(max_copies(), sizeof(KvBlockCopy)) +
               array(batch.max_seqs, sizeof(kernels::PendingToken)) + array(1, sizeof(int32_t));
  for (const auto& table : batch.tables) {
    max_bytes_ += array(batch.max_tokens, sizeof(int64_t)) +
                  array(int64_t{batch.max_seqs} * table.max_entries, sizeof(int32_t));
  }
}

int64_t RankFrameReader::max_copies() const {
  int64_t most = 0;
  for (const KvGroupSpec& group : bounds_.groups) most += group.num_blocks;
  return most;
}

Expected<void> RankFrameReader::check(const RankFrameHeader& header) const {
  if (header.magic != RankFrameHeader::kMagic) return broken("found other bytes than a frame");
  if (header.number != number_ + 1) {
    return broken("found number " + std::to_string(header.number) + ", expected " +
                  std::to_string(number_ + 1));
  }
  if (header.kind > static_cast<uint32_t>(RankJob::Kind::kStates)) {
    return broken("found kind " + std::to_string(header.kind));
  }
  if (header.bytes > max_bytes_) {
    return broken("found " + std::to_string(header.bytes) + " bytes, expected at most " +
                  std::to_string(max_bytes_));
  }
  return {};
}

Expected<const RankJob*> RankFrameReader::read(const RankFrameHeader& header,
                                               std::span<const std::byte> payload) {
  const uint64_t digest = digest_of(header, payload, digest_);
  if (payload.size() != header.bytes || digest != header.digest)
    return broken("found other contents than its digest says");
  job_ = {.kind = static_cast<RankJob::Kind>(header.kind)};
  if (job_.kind == RankJob::Kind::kLayers) {
    SLUICE_TRY_VOID(read_layers(payload));
  } else {
    std::vector<int32_t>& flag = positions_;
    flag.clear();
    const auto most = static_cast<size_t>(bounds_.rank.step.max_logits);
    if (!take(payload, 1, flag) || flag.size() != 1 || !take(payload, most, rows_) ||
        !payload.empty()) {
      return broken("found no list of rows");
    }
    const int32_t end = bounds_.takes_earlier_rows ? bounds_.rank.batch.max_tokens
                                                   : static_cast<int32_t>(token_ids_.size());
    if (!all_within<int32_t>(rows_, 0, end)) {
      return broken("found a row that the step has not");
    }
    if (flag.front() != 0) job_.rows = rows_;
  }
  number_ = header.number;
  digest_ = digest;
  return &job_;
}

Expected<void> RankFrameReader::read_layers(std::span<const std::byte> payload) {
  const InputBatch::Bounds& batch = bounds_.rank.batch;
  const auto tokens = static_cast<size_t>(batch.max_tokens);
  const auto seqs = static_cast<size_t>(batch.max_seqs);
  const size_t num_groups = slot_mapping_.size();
  bool is_whole = take(payload, tokens, token_ids_) && take(payload, tokens, positions_) &&
                  take(payload, seqs + 1, query_start_loc_) && take(payload, seqs, seq_lens_) &&
                  take(payload, static_cast<size_t>(batch.max_rows), logits_indices_) &&
                  take(payload, seqs + 1, replay_start_loc_) && take(payload, seqs, num_drafts_) &&
                  take(payload, seqs, pending_tokens_) && take(payload, 1, recorded_) &&
                  take(payload, static_cast<size_t>(max_copies()), copies_);
  for (size_t group = 0; is_whole && group < num_groups; ++group) {
    const auto entries = static_cast<size_t>(batch.tables[group].max_entries);
    is_whole = take(payload, tokens, slot_mapping_[group]) &&
               take(payload, seqs * entries, block_tables_[group]);
  }
  if (!is_whole || !payload.empty()) return broken("found arrays of other lengths");
  const int32_t longest = seq_lens_.empty() ? 0 : *std::ranges::max_element(seq_lens_);
  SLUICE_TRY_VOID(check_step(longest));
  SLUICE_TRY_VOID(check_device_step());
  for (size_t group = 0; group < num_groups; ++group) {
    if (!recorded_.empty()) spread_table(group);
    slot_mapping_views_[group] = slot_mapping_[group];
    block_table_views_[group] = block_tables_[group];
  }
  step_ = {.token_ids = token_ids_,
           .positions = positions_,
           .query_start_loc = query_start_loc_,
           .seq_lens = seq_lens_,
           .logits_indices = logits_indices_,
           .replay_start_loc = replay_start_loc_,
           .num_drafts = num_drafts_,
           .num_replayed = replay_start_loc_.empty() ? 0 : replay_start_loc_.back(),
           .pending_tokens = pending_tokens_,
           .slot_mapping = slot_mapping_views_,
           .block_tables = block_table_views_,
           .block_table_strides = block_table_strides_,
           .max_seq_len = longest};
  job_.batch = &step_;
  job_.copies = copies_;
  if (!recorded_.empty()) job_.bucket = static_cast<size_t>(recorded_.front());
  return {};
}

Expected<void> RankFrameReader::check_step(int32_t longest) {
  const auto num_tokens = static_cast<int32_t>(token_ids_.size());
  const int32_t end = bounds_.rank.max_model_len;
  const bool has_shape = positions_.size() == token_ids_.size() &&
                         query_start_loc_.size() == seq_lens_.size() + 1 &&
                         query_start_loc_.front() == 0 && query_start_loc_.back() == num_tokens &&
                         std::ranges::is_sorted(query_start_loc_);
  if (!has_shape) return broken("found arrays that do not fit together");
  if (!all_within<TokenId>(token_ids_, 0, bounds_.vocab_size) ||
      !all_within<int32_t>(positions_, 0, end) || !all_within<int32_t>(seq_lens_, 0, end + 1) ||
      !all_within<int32_t>(logits_indices_, 0, num_tokens)) {
    return broken("found a token, position, length or row outside of the model's");
  }
  if (!are_drafts_valid()) return broken("found drafts that no state can take back");
  for (size_t group = 0; group < block_tables_.size(); ++group) {
    block_table_strides_[group] =
        entries_of(longest, bounds_.rank.batch.tables[group].tokens_per_entry);
    if (!are_blocks_valid(group)) return broken("found a block outside of the cache");
  }
  for (const KvBlockCopy& copy : copies_) {
    const bool is_group =
        copy.group >= 0 && static_cast<size_t>(copy.group) < bounds_.groups.size();
    const int32_t blocks =
        is_group ? bounds_.groups[static_cast<size_t>(copy.group)].num_blocks : 0;
    const std::array ends = {copy.from.value, copy.to.value};
    if (!all_within<int32_t>(ends, 0, blocks)) return broken("found a copy outside of the cache");
  }
  return {};
}

// A recorded step has room for its rows, each of which chooses a token.
Expected<void> RankFrameReader::check_device_step() {
  const size_t num_tokens = token_ids_.size();
  for (const kernels::PendingToken& pending : pending_tokens_) {
    if (pending.row < 0 || static_cast<size_t>(pending.row) >= num_tokens || pending.from < 0 ||
        pending.from >= bounds_.num_chosen) {
      return broken("found a token that no step before chose");
    }
  }
  if (recorded_.empty()) return {};
  const auto number = static_cast<size_t>(recorded_.front());  // huge if it is negative
  const bool is_there = number < bounds_.recorded_rows.size() && num_tokens > 0 &&
                        num_tokens <= static_cast<size_t>(bounds_.recorded_rows[number]) &&
                        logits_indices_.size() == num_tokens;
  if (!is_there) return broken("found no such recorded step");
  return {};
}

// A recorded step reads each request's entries after room for the longest one's, which are not
// sent.
void RankFrameReader::spread_table(size_t group) {
  const auto used = static_cast<ptrdiff_t>(block_table_strides_[group]);
  const auto stride = static_cast<ptrdiff_t>(bounds_.rank.batch.tables[group].max_entries);
  std::vector<int32_t>& table = block_tables_[group];
  table.resize(seq_lens_.size() * static_cast<size_t>(stride));
  for (auto i = static_cast<ptrdiff_t>(seq_lens_.size()) - 1; i > 0; --i) {
    const auto row = table.begin() + i * used;
    std::copy_backward(row, row + used, table.begin() + i * stride + used);
  }
  block_table_strides_[group] = static_cast<int32_t>(stride);
}

// Whether each request's drafts and replayed rows fit its own rows and the bound of the state
// groups.
bool RankFrameReader::are_drafts_valid() const {
  if (replay_start_loc_.empty() && num_drafts_.empty()) return true;
  if (replay_start_loc_.size() != query_start_loc_.size() ||
      num_drafts_.size() != seq_lens_.size() || replay_start_loc_.front() != 0 ||
      !std::ranges::is_sorted(replay_start_loc_)) {
    return false;
  }
  int32_t most = std::numeric_limits<int32_t>::max();
  for (const KvGroupSpec& group : bounds_.groups) {
    if (group.kind == KvGroupKind::kState) most = std::min(most, group.most_drafts);
  }
  for (size_t i = 0; i < seq_lens_.size(); ++i) {
    const int32_t rows = query_start_loc_[i + 1] - query_start_loc_[i];
    const int32_t replayed = replay_start_loc_[i + 1] - replay_start_loc_[i];
    if (num_drafts_[i] < 0 || num_drafts_[i] > std::min(most, std::max(rows - 1, 0))) return false;
    if (replayed > 0 && replayed > std::min(most, seq_lens_[i] - rows - 1)) return false;
  }
  return true;
}

bool RankFrameReader::are_blocks_valid(size_t group) const {
  const int32_t per_entry = bounds_.rank.batch.tables[group].tokens_per_entry;
  const auto stride = static_cast<size_t>(block_table_strides_[group]);
  const int32_t end = bounds_.groups[group].num_blocks;
  if (slot_mapping_[group].size() != token_ids_.size() ||
      block_tables_[group].size() != seq_lens_.size() * stride ||
      !all_within<int64_t>(slot_mapping_[group], 0, int64_t{end} * per_entry)) {
    return false;
  }
  // Entries after a request's last token are never read.
  for (size_t i = 0; i < seq_lens_.size(); ++i) {
    const auto used = static_cast<size_t>(entries_of(seq_lens_[i], per_entry));
    const auto row = std::span(block_tables_[group]).subspan(i * stride, used);
    if (!all_within<int32_t>(row, kNullBlock.value, end)) return false;
  }
  return true;
}

}  // namespace sluice
