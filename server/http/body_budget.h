// SPDX-License-Identifier: Apache-2.0
// The memory that all incomplete request bodies share, which bounds what clients take together that
// send large ones or never end them. All threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice {

class BodyBudget {
 public:
  // Bytes of a body that count for no budget: --max-connections bounds how many there are.
  static constexpr int64_t kFreeBytes = 64 << 10;

  explicit BodyBudget(int64_t most_bytes) : most_(most_bytes) {}

  [[nodiscard]] int64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  friend class BodyShare;

  const int64_t most_;
  std::atomic<int64_t> used_{0};
};

// What one body has of the budget, until it is complete.
class BodyShare {
 public:
  explicit BodyShare(BodyBudget& budget) : budget_(budget) {}
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  ~BodyShare() { budget_.used_.fetch_sub(held_); }

  // Returns false where there is no room for a body of so many bytes.
  [[nodiscard]] bool grow_to(int64_t body_bytes) {
    const int64_t more = body_bytes - BodyBudget::kFreeBytes - held_;
    if (more <= 0) return true;
    if (budget_.used_.fetch_add(more) + more > budget_.most_) {
      budget_.used_.fetch_sub(more);
      return false;
    }
    held_ += more;
    return true;
  }

 private:
  BodyBudget& budget_;
  int64_t held_ = 0;
};

}  // namespace sluice
