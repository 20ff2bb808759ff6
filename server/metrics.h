// SPDX-License-Identifier: Apache-2.0
// Prometheus text from the engine's statistics and the front end's counters, under the names and
// buckets of vLLM, so that its dashboards and autoscalers read ours.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "engine/core/stats.h"
#include "engine/core/types.h"

namespace sluice {

struct Config;

inline constexpr size_t kMaxRoutes = 24;
inline constexpr size_t kUnroutedHandler = kMaxRoutes - 1;  // no route, or not even HTTP

// Responses by handler and status. Any thread.
class HttpCounters {
 public:
  static constexpr std::array kStatuses = {
      200, 204, 400, 401, 403, 404, 405, 408, 413, 417, 429, 431, 499, 500, 501, 503, 504, 505};

  void count(size_t handler, int status);

  [[nodiscard]] uint64_t value(size_t handler, size_t status_idx) const {
    return counts_[handler][status_idx].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::array<std::atomic<uint64_t>, kStatuses.size()>, kMaxRoutes> counts_{};
};

// Generations by the reason the client saw (a stop string ends one here, not in the engine).
class FinishCounters {
 public:
  void count(FinishReason reason) {
    counts_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }

  [[nodiscard]] uint64_t value(FinishReason reason) const {
    return counts_[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, 5> counts_{};
};

std::string metrics_text(const EngineStats& stats,
                         const Config& config,
                         const std::string& model_name,
                         const HttpCounters& http,
                         const FinishCounters& finished);

}  // namespace sluice
