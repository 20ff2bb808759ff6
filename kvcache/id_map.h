// SPDX-License-Identifier: Apache-2.0
// A fixed-size map from an id to a small index: open addressing with linear probing, sized at
// construction, so that a lookup costs one or two cache lines and nothing is ever allocated later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/probe_run.h"
#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

template <typename Id>
class IndexMap {
 public:
  static constexpr int32_t kAbsent = -1;

  // The map holds at most `max_entries` ids at a time.
  explicit IndexMap(int32_t max_entries) {
    size_t capacity = 8;
    while (capacity < static_cast<size_t>(max_entries) * 2) capacity *= 2;
    cells_.resize(capacity);
    mask_ = capacity - 1;
  }

  [[nodiscard]] int32_t find(Id id) const {
    for (size_t i = home(id);; i = (i + 1) & mask_) {
      if (cells_[i].index == kAbsent) return kAbsent;
      if (cells_[i].id == id) return cells_[i].index;
    }
  }

  // The id must be absent.
  void insert(Id id, int32_t index) {
    CHECK_LT(size_ * 2, cells_.size() + 1);
    size_t i = home(id);
    while (cells_[i].index != kAbsent) i = (i + 1) & mask_;
    cells_[i] = {id, index};
    ++size_;
  }

  // The id must be present.
  void erase(Id id) {
    size_t i = home(id);
    while (cells_[i].id != id || cells_[i].index == kAbsent) {
      CHECK(cells_[i].index != kAbsent);
      i = (i + 1) & mask_;
    }
    close_hole(cells_, i, Cell{}, [this](const Cell& cell) { return home(cell.id); });
    --size_;
  }

  [[nodiscard]] size_t size() const { return size_; }

 private:
  struct Cell {
    Id id;
    int32_t index = kAbsent;

    bool operator==(const Cell&) const = default;
  };

  // Ids are mostly consecutive; the multiplication spreads them.
  [[nodiscard]] size_t home(Id id) const {
    return static_cast<size_t>((id.value * 0x9E3779B97F4A7C15ull) >> 20) & mask_;
  }

  std::vector<Cell> cells_;
  size_t mask_ = 0;
  size_t size_ = 0;
};

using IdMap = IndexMap<RequestId>;

}  // namespace sluice
