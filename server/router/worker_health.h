// SPDX-License-Identifier: Apache-2.0
// A worker's health by its pings: whether it answers, progresses while it has work, and drains. A
// value without clock, thread or I/O.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace sluice {

// The load that the worker reported last.
struct WorkerLoad {
  uint64_t epoch = 0;      // identifies the process
  uint64_t num_steps = 0;  // grows while it has work
  bool is_draining = false;
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t queued_tokens = 0;  // tokens of prompts without an output yet
  int64_t num_blocks_total = 0;
  int64_t num_blocks_used = 0;
  std::optional<int64_t> num_open = {};  // requests that have not ended; none: unknown
};

class WorkerHealth {
 public:
  using Time = std::chrono::steady_clock::time_point;

  enum class Status : uint8_t {
    kUnknown,  // has not answered yet
    kLive,     // answers; may be draining
    kSilent,   // no longer answers
    kStuck,    // answers, but its work does not progress
  };

  static constexpr std::chrono::milliseconds kPingInterval{1000};
  // Time since the latest answer: with the ping's own interval and deadline within 5 s of a stop.
  static constexpr std::chrono::milliseconds kMostSilence{3500};
  static constexpr std::chrono::milliseconds kMostStandstill{30'000};
  static constexpr std::chrono::milliseconds kMostForgotten{10'000};

  void answered(const WorkerLoad& load, Time now);

  // The connection is gone or refused: silent until the worker answers again.
  void lost() { has_answered_ = false; }

  // The worker takes no more requests, even if it reported otherwise.
  void drains() { load_.is_draining = true; }

  [[nodiscard]] Status status(Time now) const;

  // Tells whether the worker has answered a ping at that time or later.
  [[nodiscard]] bool has_answered_since(Time time) const { return answered_at_ >= time; }

  // Tells whether the worker has reported for long, and since `time`, that it has no request at
  // all: it has then lost any request that it accepted before.
  [[nodiscard]] bool has_forgotten_since(Time time) const;

  [[nodiscard]] const WorkerLoad& load() const { return load_; }

 private:
  WorkerLoad load_;
  bool has_answered_ = false;
  bool ever_answered_ = false;
  Time answered_at_{};
  Time moved_at_{};  // num_steps changed, or there was no work
  Time idle_since_{};  // it has said since then that it has no request; none: the clock's epoch
};

}  // namespace sluice
