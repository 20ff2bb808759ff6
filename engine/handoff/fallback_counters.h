// SPDX-License-Identifier: Apache-2.0
// Counts, by reason, how often KV was computed here that a request wanted to have moved. A front
// end counts its own decisions, an engine the others; a scrape adds both. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "engine/core/handoff_fallback.h"

namespace sluice {

class FallbackCounters {
 public:
  // Counts the reason, and logs it at most once a minute.
  void count(HandoffFallback reason, int32_t times);

  [[nodiscard]] uint64_t value(HandoffFallback reason) const {
    return counts_[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, kNumHandoffFallbacks> counts_{};
  std::array<std::atomic<int64_t>, kNumHandoffFallbacks> logged_s_{};  // steady clock; 0: never
};

}  // namespace sluice
