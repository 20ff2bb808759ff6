// SPDX-License-Identifier: Apache-2.0
// The ranks above 0 of a model that several share, each on a thread of its own. Rank 0 is whoever
// runs the steps; it tells them what to do, and they stay parked in between. On the CPU weights are
// shared: a rank reads its rows and columns of them; a device has its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/model_rank.h"

namespace sluice {

// start(), finish() and the destructor on the thread of rank 0, which runs the same job in between.
class Followers {
 public:
  // `ranks` must outlive it.
  explicit Followers(std::span<const std::unique_ptr<ModelRank>> ranks);
  ~Followers();
  Followers(const Followers&) = delete;
  Followers& operator=(const Followers&) = delete;

  void start(const RankJob& job);
  void finish();  // returns when every rank has run it; on devices, has put it into its queue

 private:
  void thread_main(ModelRank& rank);

  RankJob job_;                                        // written by rank 0 while no rank runs
  bool is_ending_ = false;                             // the same
  alignas(64) std::atomic<uint32_t> num_started_ = 0;  // jobs
  alignas(64) std::atomic<uint32_t> num_running_ = 0;  // ranks
  std::vector<std::thread> threads_;
};

}  // namespace sluice
