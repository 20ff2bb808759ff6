// SPDX-License-Identifier: Apache-2.0
// The rows of one request of a StateTable in order, and the blocks that they find and leave; for
// the CPU and for kernels.
#pragma once

#include <cstdint>

#include "kernels/recurrent.h"

namespace sluice::kernels {

// Rows side by side, and the block that keeps the state after them; below 0: none does.
struct StateRun {
  int32_t first_row;
  int32_t num_rows;
  int32_t block;
};

// Positions count the request's tokens; rows of drafts are the last ones.
class StateWalk {
 public:
  constexpr StateWalk(const StateTable& table, int64_t request)
      : entries_(table.block_table + request * table.block_table_stride),
        tokens_per_entry_(table.tokens_per_entry) {
    const int32_t* const starts = table.query_start_loc.data() + request;
    first_row_ = starts[0];
    end_ = table.seq_lens.data()[request];
    begin_ = end_ - (starts[1] - first_row_);
    left_ = end_ - (table.num_drafts.empty() ? 0 : table.num_drafts.data()[request]);
    found_ = begin_;
    if (table.replay_start_loc.empty()) return;
    const int32_t* const replayed = table.replay_start_loc.data() + request;
    first_replayed_ = table.query_start_loc.data()[table.query_start_loc.size() - 1] + replayed[0];
    found_ -= replayed[1] - replayed[0];
  }

  // The first position of a run, and one past the last; equal where the request has no rows.
  [[nodiscard]] constexpr int32_t first() const { return begin_ == end_ ? end_ : found_; }

  [[nodiscard]] constexpr int32_t end() const { return end_; }

  // The block with the state that the first row finds; below 0: zeros.
  [[nodiscard]] constexpr int32_t found() const { return found_ == 0 ? -1 : entry(found_ - 1); }

  // The block of the state that is left.
  [[nodiscard]] constexpr int32_t left() const { return entry(left_ - 1); }

  // The run that begins at a position below end().
  [[nodiscard]] constexpr StateRun run_at(int32_t position) const {
    const int32_t own = first_row_ + position - begin_;
    if (position >= left_) return {own, end_ - position, -1};
    const int32_t block = entry(position);
    int32_t next = position;
    while (next < left_ && entry(next) == block) {
      next = (next / tokens_per_entry_ + 1) * tokens_per_entry_;
    }
    if (next > left_) next = left_;
    if (position >= begin_) return {own, next - position, block};
    const int32_t replayed = first_replayed_ + position - found_;
    if (next > begin_) return {replayed, begin_ - position, -1};
    return {replayed, next - position, block};
  }

  // The rows that are replayed, and the drafts.
  [[nodiscard]] constexpr StateRun replayed() const {
    return {first_replayed_, begin_ - found_, -1};
  }

  [[nodiscard]] constexpr StateRun drafts() const {
    return {first_row_ + left_ - begin_, end_ - left_, -1};
  }

 private:
  [[nodiscard]] constexpr int32_t entry(int32_t position) const {
    return entries_[position / tokens_per_entry_];
  }

  const int32_t* entries_;
  int32_t tokens_per_entry_;
  int32_t first_row_ = 0;       // of this step
  int32_t first_replayed_ = 0;  // row
  // Tokens of the state that is found, in front of this step's first row, of the state that is
  // left, and in front of the end.
  int32_t found_ = 0;
  int32_t begin_ = 0;
  int32_t left_ = 0;
  int32_t end_ = 0;
};

}  // namespace sluice::kernels
