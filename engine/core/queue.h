// SPDX-License-Identifier: Apache-2.0
// Inbox: the only queue by which other threads send to the engine thread. Bounded, mutex and swap:
// a push costs tens of nanoseconds, a drain one swap per step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

template <typename T>
class Inbox {
 public:
  explicit Inbox(size_t capacity) : capacity_(capacity) { items_.reserve(capacity); }

  // Any thread. False when full or closed: scarcity is a value, the caller answers 429 or 503.
  [[nodiscard]] bool try_push(T item) {
    {
      const std::scoped_lock lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // Any thread. For commands that must not be lost (abort, stop): ignores the bound, not close().
  bool push_urgent(T item) {
    {
      const std::scoped_lock lock(mutex_);
      if (closed_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // Consumer thread. Replaces `out` by everything queued; `out` keeps its capacity across calls.
  void drain(std::vector<T>& out) {
    out.clear();
    const std::scoped_lock lock(mutex_);
    items_.swap(out);
  }

  // Consumer thread. Returns when something is queued, the inbox closes, or the time is over.
  void wait_for(std::chrono::microseconds timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [this] { return closed_ || !items_.empty(); });
  }

  // Any thread. Later pushes fail; queued items stay for drain().
  void close() {
    {
      const std::scoped_lock lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  [[nodiscard]] size_t size() const {
    const std::scoped_lock lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> items_;  // guarded by mutex_
  bool closed_ = false;   // guarded by mutex_
};

}  // namespace sluice
