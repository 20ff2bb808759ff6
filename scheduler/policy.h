// SPDX-License-Identifier: Apache-2.0
// Who comes first: lower priority number, then earlier arrival; and the queue in that order.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

// The place of a request among all others; a preemption does not change it.
struct QueueKey {
  int32_t priority = 0;
  uint64_t arrival_order = 0;
  friend auto operator<=>(const QueueKey&, const QueueKey&) = default;
};

// Entries by key: a binary heap that knows where each entry is, so that any can be removed.
// `entry` is an index below the capacity given at construction; nothing is allocated later.
class WaitingQueue {
 public:
  explicit WaitingQueue(int32_t max_entries);

  void push(QueueKey key, int32_t entry);
  void remove(int32_t entry);  // must be there

  [[nodiscard]] int32_t first() const { return heap_.front().entry; }

  [[nodiscard]] bool contains(int32_t entry) const {
    return positions_[static_cast<size_t>(entry)] >= 0;
  }

  [[nodiscard]] bool empty() const { return heap_.empty(); }

  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(heap_.size()); }

  [[nodiscard]] std::string check_integrity() const;

 private:
  struct Item {
    QueueKey key;
    int32_t entry = 0;
  };

  void place(size_t position, const Item& item);
  void sift_up(size_t position, const Item& item);
  void sift_down(size_t position, const Item& item);

  std::vector<Item> heap_;
  std::vector<int32_t> positions_;  // by entry; -1 when absent
};

}  // namespace sluice
