// SPDX-License-Identifier: Apache-2.0
#include "engine/run/step_queue.h"

#include <utility>

#include "engine/core/status.h"

namespace sluice {

StepQueue::StepQueue(std::function<void(uint64_t)> run,
                     bool has_thread,
                     const kernels::Device& device)
    : run_(std::move(run)) {
  if (has_thread) thread_ = std::thread([this, &device] { thread_main(device); });
}

StepQueue::~StepQueue() {
  if (!has_thread()) return;
  {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepQueue::push() {
  if (!has_thread()) {
    run_(num_pushed_++);
    num_run_ = num_pushed_;
    return;
  }
  {
    const std::scoped_lock lock(mutex_);
    ++num_pushed_;
  }
  changed_.notify_all();
}

void StepQueue::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  CHECK_LT(number, num_pushed_);
  changed_.wait(lock, [&] { return num_run_ > number; });
}

void StepQueue::thread_main(const kernels::Device& device) {
  device.enter();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return num_run_ < num_pushed_ || is_ending_; });
    if (num_run_ == num_pushed_) return;
    const uint64_t next = num_run_;
    lock.unlock();
    run_(next);
    lock.lock();
    ++num_run_;
    changed_.notify_all();
  }
}

}  // namespace sluice
