// SPDX-License-Identifier: Apache-2.0
// The state of one block while it runs, for the shim's own files.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/simt/async.h"
#include "tests/support/simt/race.h"
#include "tests/support/simt/simt.h"

namespace sluice::simt {

class Block;
class Cluster;

inline constexpr int64_t kSharedLimit = 227 * 1024;  // of a block on sm_90
inline constexpr int64_t kArenaBytes = 512 * 1024;   // where a block's shared memory lies
inline constexpr int64_t kStackBytes = 256 * 1024;   // of a thread

// Thrown on a fiber to leave its kernel after fail() wrote its report.
struct LaunchFailed {};

struct Thread : ThreadView {
  int index = 0;  // in its block
  int agent = 0;  // the race detector's number of it
  Block* block = nullptr;
  boost::context::fiber fiber;      // suspended; empty while it runs and when it has ended
  std::byte* stack = nullptr;       // lowest byte; null: not started
  const char* waits_for = nullptr;  // null: ready, running or ended
  Site waits_at;
  bool ended = false;
  bool waited_for_launches = true;  // or need not
  int64_t arrived_phase = -1;  // of the cluster's barrier, whose wait it has yet to do
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

// Threads and shared memory of one block; when they run is the cluster's business.
class Block {
 public:
  // `rank`: its number in the cluster; `arena`: of kArenaBytes, its own.
  Block(Cluster& cluster, const LaunchShape& shape, Dim3 index, int rank, std::byte* arena);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Cluster& cluster() { return cluster_; }

  [[nodiscard]] int rank() const { return rank_; }

  // The thread that runs; of this block.
  Thread& self();

  std::vector<Thread>& threads() { return threads_; }

  [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()); }

  [[nodiscard]] bool has_ended() const { return num_ended_ == num_threads(); }

  void end(Thread& thread);

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

  // Something that happens to this block by itself, whenever the scheduler likes.
  void start_async(std::function<void()> operation);

  // The part of shared memory that [p, p + bytes) lies in; else the error is the running thread's.
  int64_t shared_offset(const void* p, int64_t bytes, const char* who);
  [[nodiscard]] std::string place(int64_t offset) const;

  // Whether it is the running thread's own, or shared memory, or threadIdx and its like.
  [[nodiscard]] bool is_own(const std::byte* p);

  // The cluster's; null in plain mode.
  RaceDetector* race();

  AsyncState& async() { return async_; }

  std::byte* arena() { return arena_; }

 private:
  SharedRegion& add_region(const void* key, int64_t bytes, int64_t alignment, const char* name);

  Cluster& cluster_;
  int rank_;
  int64_t shared_bytes_;  // of the launch: the dynamic part
  std::vector<Thread> threads_;
  int num_ended_ = 0;
  std::vector<std::vector<WarpMeeting*>> meetings_;  // by warp; on the stack of who came first
  Barrier barriers_[16];
  std::byte* arena_;
  int64_t arena_used_ = 0;
  std::vector<SharedRegion> regions_;
  AsyncState async_;
};

// Of the thread that runs, or that something happens to; never null inside a kernel.
Block& current_block();
void add_report(const std::string& what);
[[nodiscard]] std::string describe(Site site);

// What the address sanitizer must know of memory that is no object; nothing without it.
void forbid(const void* p, int64_t bytes);
void allow(const void* p, int64_t bytes);

}  // namespace sluice::simt
