// SPDX-License-Identifier: Apache-2.0
// The OutputSink of the commands that run an engine in process: a queue of outputs with the time
// of the step that made them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/engine.h"

namespace sluice {

struct TimedOutput {
  TokenOutput output;
  std::chrono::steady_clock::time_point at;  // equal for all outputs of one step
};

class OutputQueue final : public OutputSink {
 public:
  // Called on the engine thread.
  void publish(OutputBatch batch) override {
    const auto now = std::chrono::steady_clock::now();
    // Notified under the lock: with the last output its reader may destroy this queue.
    const std::scoped_lock lock(mutex_);
    for (TokenOutput& output : batch.outputs) outputs_.push_back({std::move(output), now});
    ready_.notify_one();
  }

  // Called on the command's thread. Returns nothing when the time is over.
  std::optional<TimedOutput> pop(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!ready_.wait_for(lock, timeout, [this] { return !outputs_.empty(); })) return std::nullopt;
    TimedOutput output = std::move(outputs_.front());
    outputs_.pop_front();
    return output;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<TimedOutput> outputs_;  // guarded by mutex_
};

}  // namespace sluice
