// SPDX-License-Identifier: Apache-2.0
// Steps in order, run one after the other: at once by the thread that pushes them, or by a thread
// of its own, in the place of a device's queue.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "kernels/device.h"

namespace sluice {

// push() and wait() on one thread.
class StepQueue {
 public:
  // `run`: given 0, 1, 2, ... `device`: its place on the machine is that of the thread, and it must
  // outlive the queue.
  StepQueue(std::function<void(uint64_t)> run, bool has_thread, const kernels::Device& device);
  ~StepQueue();  // when all that was pushed has run
  StepQueue(const StepQueue&) = delete;
  StepQueue& operator=(const StepQueue&) = delete;

  [[nodiscard]] bool has_thread() const { return thread_.joinable(); }

  // The next step.
  void push();
  // Until step `number`, which was pushed, has run.
  void wait(uint64_t number);

 private:
  void thread_main(const kernels::Device& device);

  const std::function<void(uint64_t)> run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t num_pushed_ = 0;  // guarded by mutex_ where there is a thread, as are those below
  uint64_t num_run_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace sluice
