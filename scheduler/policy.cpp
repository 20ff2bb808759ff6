// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policy.h"

#include <cstddef>

#include "engine/core/status.h"

namespace sluice {

WaitingQueue::WaitingQueue(int32_t max_entries) {
  heap_.reserve(static_cast<size_t>(max_entries));
  positions_.resize(static_cast<size_t>(max_entries), -1);
}

void WaitingQueue::place(size_t position, const Item& item) {
  heap_[position] = item;
  positions_[static_cast<size_t>(item.entry)] = static_cast<int32_t>(position);
}

void WaitingQueue::sift_up(size_t position, const Item& item) {
  while (position > 0) {
    const size_t parent = (position - 1) / 2;
    if (!(item.key < heap_[parent].key)) break;
    place(position, heap_[parent]);
    position = parent;
  }
  place(position, item);
}

void WaitingQueue::sift_down(size_t position, const Item& item) {
  for (;;) {
    size_t child = 2 * position + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1].key < heap_[child].key) ++child;
    if (!(heap_[child].key < item.key)) break;
    place(position, heap_[child]);
    position = child;
  }
  place(position, item);
}

void WaitingQueue::push(QueueKey key, int32_t entry) {
  CHECK(!contains(entry));
  const Item item{key, entry};
  heap_.push_back(item);
  sift_up(heap_.size() - 1, item);
}

void WaitingQueue::remove(int32_t entry) {
  CHECK(contains(entry));
  const auto position = static_cast<size_t>(positions_[static_cast<size_t>(entry)]);
  positions_[static_cast<size_t>(entry)] = -1;
  const Item last = heap_.back();
  heap_.pop_back();
  if (position == heap_.size()) return;
  if (position > 0 && last.key < heap_[(position - 1) / 2].key) {
    sift_up(position, last);
  } else {
    sift_down(position, last);
  }
}

std::string WaitingQueue::check_integrity() const {
  size_t num_placed = 0;
  for (const int32_t position : positions_) num_placed += position >= 0;
  if (num_placed != heap_.size()) return "the waiting queue miscounts";
  for (size_t i = 0; i < heap_.size(); ++i) {
    if (positions_[static_cast<size_t>(heap_[i].entry)] != static_cast<int32_t>(i)) {
      return "the waiting queue lost an entry's place";
    }
    if (i > 0 && heap_[i].key < heap_[(i - 1) / 2].key) return "the waiting queue is out of order";
  }
  return {};
}

}  // namespace sluice
