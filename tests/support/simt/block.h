// SPDX-License-Identifier: Apache-2.0
// The state of one block while it runs, for the shim's own files.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/simt/async.h"
#include "tests/support/simt/race.h"
#include "tests/support/simt/simt.h"

namespace sluice::simt {

// Thrown on a fiber to leave its kernel after fail() wrote its report.
struct LaunchFailed {};

struct Thread : ThreadView {
  int index = 0;
  boost::context::fiber fiber;      // suspended; empty while it runs and when it has ended
  std::byte* stack = nullptr;       // lowest byte; null: not started
  const char* waits_for = nullptr;  // null: ready, running or ended
  Site waits_at;
  bool ended = false;
};

struct WarpMeeting {
  uint32_t mask;
  uint32_t arrived;
  const char* name;
  Site site;
  void* operands[32];
};

struct Barrier {
  int expected = 0;  // 0: nobody waits
  const char* name = nullptr;
  Site site;
  std::vector<int> waiting;
};

struct SharedRegion {
  const void* key;  // null: the dynamic one
  std::string name;
  int64_t begin;  // offset in the arena
  int64_t bytes;
};

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

class Block {
 public:
  Block(const LaunchShape& shape, Dim3 index, uint64_t seed, Mode mode, GlobalShadow& global);
  ~Block();

  // To the end of every thread, or of the first error.
  void run(const std::function<void()>& body);

  Thread& self() { return threads_[static_cast<size_t>(running_)]; }

  [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()); }

  void warp_collective(uint32_t mask,
                       const char* name,
                       void* operand,
                       Complete complete,
                       bool orders_memory,
                       Site site);
  // count 0: every thread of the block.
  void barrier(int id, int count, const char* name, Site site);
  void* shared(const void* key, int64_t bytes, int64_t alignment, const char* name);
  void* dynamic_shared(int64_t bytes, const char* name);

  // Gives the processor away until wake(index).
  void wait(const char* reason, Site site);
  void wake(int index);

  // Something that happens by itself, whenever the scheduler likes.
  void start_async(std::function<void()> operation) { pending_.push_back(std::move(operation)); }

  // The part of shared memory that [p, p + bytes) lies in; else the error is this thread's.
  int64_t shared_offset(const void* p, int64_t bytes, const char* who);
  [[nodiscard]] std::string place(int64_t offset) const;

  // Whether it is the running thread's own, which nobody else knows.
  [[nodiscard]] bool on_stack(const std::byte* p);

  // The same, or shared memory, or threadIdx and its like.
  [[nodiscard]] bool is_own(const std::byte* p);

  // Null in plain mode.
  RaceDetector* race() { return race_.get(); }

  AsyncState& async() { return async_; }

  std::byte* arena() { return arena_; }

 private:
  enum class Policy : uint8_t { kLatestFirst, kStarveOneWarp, kRandom };

  void start_thread(Thread& thread, const std::function<void()>& body);
  void resume(Thread& thread);
  void abandon();
  [[nodiscard]] size_t pick();
  bool step();
  [[nodiscard]] std::string who_waits() const;
  SharedRegion& add_region(const void* key, int64_t bytes, int64_t alignment, const char* name);

  LaunchShape shape_;
  Random64 random_;
  Policy policy_;
  int starved_warp_ = -1;
  std::vector<Thread> threads_;
  std::vector<int> ready_;
  std::deque<std::function<void()>> pending_;
  int running_ = -1;
  int num_ended_ = 0;
  bool failed_ = false;
  boost::context::fiber scheduler_;
  std::vector<std::vector<WarpMeeting*>> meetings_;  // by warp; on the stack of who came first
  Barrier barriers_[16];
  std::byte* arena_;
  int64_t arena_used_ = 0;
  std::vector<SharedRegion> regions_;
  std::unique_ptr<RaceDetector> race_;
  AsyncState async_;
};

// Of the block that runs; never null inside a kernel.
Block& current_block();
void add_report(const std::string& what);
[[nodiscard]] std::string describe(Site site);

}  // namespace sluice::simt
