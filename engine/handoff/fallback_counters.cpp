// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/fallback_counters.h"

#include <chrono>

#include "engine/core/log.h"

namespace sluice {

void FallbackCounters::count(HandoffFallback reason, int32_t times) {
  constexpr int64_t kSilenceS = 60;
  const auto i = static_cast<size_t>(reason);
  counts_[i].fetch_add(static_cast<uint64_t>(times), std::memory_order_relaxed);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t now_s = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  int64_t last_s = logged_s_[i].load();
  if (last_s != 0 && now_s - last_s < kSilenceS) return;
  if (!logged_s_[i].compare_exchange_strong(last_s, now_s)) return;
  log_event(LogLevel::kWarning,
            "handoff_fallback",
            "reason",
            to_string(reason),
            "so_far",
            value(reason));
}

}  // namespace sluice
