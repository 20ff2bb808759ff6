// SPDX-License-Identifier: Apache-2.0
// Runs steps in order: directly in push(), or on a separate thread that takes the place of a
// device's queue.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "kernels/device.h"

namespace sluice {

// push() and wait() run on one thread.
class StepQueue {
 public:
  // `run` is called with 0, 1, 2, ... The thread is placed as `device` says, which must outlive the
  // queue.
  StepQueue(std::function<void(uint64_t)> run, bool has_thread, const kernels::Device& device);
  ~StepQueue();  // waits until all pushed steps have run
  StepQueue(const StepQueue&) = delete;
  StepQueue& operator=(const StepQueue&) = delete;

  [[nodiscard]] bool has_thread() const { return thread_.joinable(); }

  // Queues the next step.
  void push();
  // Waits until step `number`, which must have been pushed, has run.
  void wait(uint64_t number);

 private:
  void thread_main(const kernels::Device& device);

  const std::function<void(uint64_t)> run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t num_pushed_ = 0;  // this and the following: guarded by mutex_ if there is a thread
  uint64_t num_run_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace sluice
