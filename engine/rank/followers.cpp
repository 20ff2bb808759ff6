// SPDX-License-Identifier: Apache-2.0
#include "engine/rank/followers.h"

#include "engine/core/thread_priority.h"
#include "engine/parallel/parallel.h"

namespace sluice {

Followers::Followers(std::span<const std::unique_ptr<ModelRank>> ranks) {
  for (const auto& rank : ranks) {
    threads_.emplace_back([this, own = rank.get()] { thread_main(*own); });
  }
}

Followers::~Followers() {
  is_ending_ = true;
  num_started_.fetch_add(1);
  num_started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Followers::start(const RankJob& job) {
  job_ = job;
  num_running_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  num_started_.fetch_add(1);
  num_started_.notify_all();
}

void Followers::finish() {
  for (uint32_t left = num_running_.load(); left != 0; left = num_running_.load()) {
    wait_for_change(num_running_, left);
  }
}

void Followers::thread_main(ModelRank& rank) {
  // For a device the thread only launches, and all ranks wait for the slowest.
  if (rank.device().type() == DeviceType::kCpu) lower_own_priority();
  rank.device().enter();
  for (uint32_t seen = 0;; ++seen) {
    wait_for_change(num_started_, seen);
    if (is_ending_) return;
    rank.run(job_);
    if (num_running_.fetch_sub(1) == 1) num_running_.notify_all();
  }
}

}  // namespace sluice
