// SPDX-License-Identifier: Apache-2.0
// The hidden states that rows of a head have beside their tokens (models/eagle.h): of the target's
// last step, kept from an earlier one, zeros where nobody knows them, or the head's own. On the
// CPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/models/model.h"

namespace sluice {

class HeadRows {
 public:
  // Of at most `max_rows` rows for a head on `target`, which must outlive it.
  HeadRows(const Model& target, const HeadConfig& head, int32_t max_rows);

  static int64_t bytes(const HeadConfig& head, int32_t max_rows) {
    return width_of(head) * max_rows * static_cast<int64_t>(sizeof(float));
  }

  void begin() { rows_.clear(); }

  // Of the position before the row's: row `row` of the target's last step.
  void add_tapped(int32_t row) { add(tapped(row)); }

  void add_unknown() { rows_.resize(rows_.size() + static_cast<size_t>(width_)); }

  void add(std::span<const float> state) { rows_.insert(rows_.end(), state.begin(), state.end()); }

  [[nodiscard]] std::span<const float> tapped(int32_t row) const {
    return {target_.taps() + row * width_, static_cast<size_t>(width_)};
  }

  // All rows are the target's, or all are the head's own states of this width.
  [[nodiscard]] HiddenRows tapped_rows() const { return {rows_.data(), width_, true}; }

  [[nodiscard]] HiddenRows own_rows(int64_t width) const { return {rows_.data(), width, false}; }

 private:
  static int64_t width_of(const HeadConfig& head) {
    return static_cast<int64_t>(head.taps.size()) * head.target_hidden;
  }

  const Model& target_;
  int64_t width_;
  std::vector<float> rows_;
};

}  // namespace sluice
