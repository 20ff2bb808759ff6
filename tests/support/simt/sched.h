// SPDX-License-Identifier: Apache-2.0
// The blocks of a running gang: one order of all their threads and asynchronous copies. The blocks
// of gpu::launch_together are one gang, those of other launches one each.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/simt/block.h"
#include "tests/support/simt/race.h"
#include "tests/support/simt/simt.h"

namespace sluice::simt {

class Random64 {
 public:
  explicit Random64(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 1) {}

  uint64_t below(uint64_t n) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return (state_ >> 16) % n;
  }

 private:
  uint64_t state_;
};

class Gang {
 public:
  // `number`: the gang's number in the grid, along x first.
  Gang(const LaunchShape& shape, unsigned number, uint64_t seed, Mode mode, GlobalShadow& global);
  ~Gang();
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  // Runs until every thread has ended, or until the first error.
  void run(const std::function<void()>& body);

  [[nodiscard]] int size() const { return static_cast<int>(blocks_.size()); }

  [[nodiscard]] int32_t number() const { return number_; }

  Block& block(int rank) { return *blocks_[static_cast<size_t>(rank)]; }

  Thread& running() { return *running_; }

  // Describes an offset in the arenas of all blocks.
  [[nodiscard]] std::string place(int64_t offset) const;

  // Suspends the running thread until wake().
  void wait(const char* reason, Site site);

  void wake(Thread& thread) { ready_.push_back(&thread); }

  // Lets the running thread continue once no other one can.
  void poll(const char* reason, Site site);

  void start_async(Block& block, std::function<void()> operation) {
    pending_.push_back({&block, std::move(operation)});
  }

  // Returns null in plain mode.
  RaceDetector* race() { return race_.get(); }

 private:
  enum class Policy : uint8_t { kLatestFirst, kStarveOneWarp, kRandom };

  struct Operation {
    Block* block;
    std::function<void()> run;
  };

  void start_thread(Thread& thread, const std::function<void()>& body);
  void resume(Thread& thread);
  void abandon();
  [[nodiscard]] size_t pick();
  bool step();
  bool poll_again();
  void check_end();
  void end(Thread& thread);
  [[nodiscard]] std::string who_waits() const;
  [[nodiscard]] bool is_starved(const Thread& thread) const;

  int32_t number_;
  Random64 random_;
  Policy policy_;
  int starved_warp_ = -1;  // number counted through all blocks
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<RaceDetector> race_;
  std::vector<Thread*> ready_;
  std::vector<Thread*> polling_;
  int num_polls_ = 0;  // of all of these
  std::deque<Operation> pending_;
  Thread* running_ = nullptr;
  bool failed_ = false;
  boost::context::fiber scheduler_;
  int num_alive_;
};

}  // namespace sluice::simt
