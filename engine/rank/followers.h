// SPDX-License-Identifier: Apache-2.0
// The ranks above 0 of a shared model, each on its own thread. Rank 0 is the thread that runs the
// steps; it sends them jobs, and they are parked in between. CPU ranks read their rows and columns
// of shared weights; each device has weights of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/rank/rank_links.h"

namespace sluice {

class Followers final : public RankLinks {
 public:
  // `ranks` must outlive this object.
  explicit Followers(std::span<const std::unique_ptr<ModelRank>> ranks);
  ~Followers() override;

  void start(const RankJob& job) override;
  void finish() override;  // returns when every rank has run the job; on devices, has queued it

 private:
  void thread_main(ModelRank& rank);

  RankJob job_;                                        // written by rank 0 while no rank runs
  bool is_ending_ = false;                             // written like job_
  alignas(64) std::atomic<uint32_t> num_started_ = 0;  // jobs
  alignas(64) std::atomic<uint32_t> num_running_ = 0;  // ranks
  std::vector<std::thread> threads_;
};

}  // namespace sluice
