// SPDX-License-Identifier: Apache-2.0
// The order of requests: a request's rank, and a heap that tracks the position of its members.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

// The charge for a generated token, in prompt tokens.
inline constexpr int64_t kGeneratedCost = 2;

// The place of a request among all others; a preemption does not change it. A priority level is
// worth `aging` milliseconds of waiting, so a stream of urgent requests cannot hold back the others
// for ever. Time adds the same amount to every key, so the order never changes.
struct QueueKey {
  int64_t rank_ms = 0;  // arrival + aging * priority; the request is due at this time
  uint64_t arrival_order = 0;
  friend auto operator<=>(const QueueKey&, const QueueKey&) = default;
};

// The worth of a level without aging: 24 days; times the largest priority it stays in range.
inline constexpr int64_t kNeverAgesMs = int64_t{1} << 31;

inline int64_t rank_ms(int64_t arrival_ms, int32_t priority, int64_t aging_ms) {
  return arrival_ms + (aging_ms > 0 ? aging_ms : kNeverAgesMs) * priority;
}

// A heap of small ids by key, the smallest first; any id can be removed. `positions` holds each
// id's position (-1: absent) and may be shared by heaps that never hold one id at the same time.
template <typename Key>
class IndexedHeap {
 public:
  explicit IndexedHeap(std::vector<int32_t>& positions) : positions_(&positions) {}

  // Reserves room for `size` members, growing at least twofold.
  void reserve(size_t size) {
    if (size > items_.capacity()) items_.reserve(std::max(size, 2 * items_.capacity()));
  }

  void push(Key key, int32_t id) {
    CHECK_LT(position(id), 0);
    const Item item{key, id};
    items_.push_back(item);
    sift_up(items_.size() - 1, item);
  }

  // Removes an id, which must be in this heap.
  void remove(int32_t id) {
    const auto hole = static_cast<size_t>(position(id));
    CHECK_LT(hole, items_.size());
    CHECK_EQ(items_[hole].id, id);
    position(id) = -1;
    const Item last = items_.back();
    items_.pop_back();
    if (hole == items_.size()) return;
    if (hole > 0 && last.key < items_[(hole - 1) / 2].key) {
      sift_up(hole, last);
    } else {
      sift_down(hole, last);
    }
  }

  // Raises the key of the first id.
  void raise_first(Key key) { sift_down(0, {key, items_.front().id}); }

  [[nodiscard]] int32_t first() const { return items_.front().id; }

  [[nodiscard]] const Key& first_key() const { return items_.front().key; }

  [[nodiscard]] bool contains(int32_t id) const {
    const auto place = static_cast<size_t>((*positions_)[static_cast<size_t>(id)]);
    return place < items_.size() && items_[place].id == id;
  }

  [[nodiscard]] const Key& key_of(int32_t id) const {
    return items_[static_cast<size_t>((*positions_)[static_cast<size_t>(id)])].key;
  }

  [[nodiscard]] bool empty() const { return items_.empty(); }

  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(items_.size()); }

  [[nodiscard]] std::string check_integrity() const {
    for (size_t i = 0; i < items_.size(); ++i) {
      if ((*positions_)[static_cast<size_t>(items_[i].id)] != static_cast<int32_t>(i)) {
        return "a queue lost an entry's place";
      }
      if (i > 0 && items_[i].key < items_[(i - 1) / 2].key) return "a queue is out of order";
    }
    return {};
  }

 private:
  struct Item {
    Key key;
    int32_t id = 0;
  };

  int32_t& position(int32_t id) { return (*positions_)[static_cast<size_t>(id)]; }

  void place(size_t at, const Item& item) {
    items_[at] = item;
    position(item.id) = static_cast<int32_t>(at);
  }

  void sift_up(size_t at, const Item& item) {
    while (at > 0) {
      const size_t parent = (at - 1) / 2;
      if (!(item.key < items_[parent].key)) break;
      place(at, items_[parent]);
      at = parent;
    }
    place(at, item);
  }

  void sift_down(size_t at, const Item& item) {
    for (;;) {
      size_t child = 2 * at + 1;
      if (child >= items_.size()) break;
      if (child + 1 < items_.size() && items_[child + 1].key < items_[child].key) ++child;
      if (!(items_[child].key < item.key)) break;
      place(at, items_[child]);
      at = child;
    }
    place(at, item);
  }

  std::vector<Item> items_;
  std::vector<int32_t>* positions_;
};

}  // namespace sluice
