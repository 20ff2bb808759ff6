// SPDX-License-Identifier: Apache-2.0
// Makes the identifiers of spans and sends what ended to a collector, by OTLP over HTTP (JSON), on
// a thread of its own. Spans wait in a bounded queue; what does not fit, or cannot be sent, is
// dropped and counted: no request ever waits for a collector.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <vector>

#include "engine/core/trace_context.h"
#include "server/traces/span.h"
#include "server/traces/trace_settings.h"

namespace sluice {

struct TracerCounts {
  uint64_t exported = 0;  // spans that a collector took
  uint64_t dropped = 0;   // spans that none will see
};

class Tracer {
 public:
  // Nothing is sent without settings: then no span is recorded, and contexts of clients are handed
  // on as they are.
  explicit Tracer(std::optional<TraceSettings> settings);
  // What waits is sent, for two seconds at most.
  ~Tracer();

  // Any thread. The context of a span below `parent`, which may be unset: a new trace. Not sampled:
  // the span is not to be recorded, and its identifiers are the parent's.
  TraceContext begin(const TraceContext& parent);

  [[nodiscard]] bool is_recording() const { return settings_.has_value(); }

  // Any thread, never waits: a span that has ended, whose context begin() gave as sampled.
  void add(Span span);

  [[nodiscard]] TracerCounts counts() const { return {exported_.load(), dropped_.load()}; }

 private:
  void run();
  void export_batch(const std::vector<Span>& batch);
  void note_failure(const std::string& reason);

  const std::optional<TraceSettings> settings_;
  std::atomic<uint64_t> exported_{0};
  std::atomic<uint64_t> dropped_{0};
  std::stop_source cut_;  // ends a request to the collector
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::mt19937_64 random_;
  std::vector<Span> waiting_;
  bool is_ending_ = false;
  bool has_ended_ = false;
  int64_t last_warning_ns_ = 0;  // the exporting thread's
  std::thread thread_;
};

// Nanoseconds since the Unix epoch, of `steady` on this process's steady clock.
int64_t unix_ns(std::chrono::steady_clock::time_point steady);

}  // namespace sluice
