// SPDX-License-Identifier: Apache-2.0
// The state of one running block, for the shim's own files.
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
class Gang;

// Bytes of shared memory that a block may have on the device of launches.
int64_t shared_limit();
inline constexpr int64_t kArenaBytes = 512 * 1024;  // bytes of a block's place for shared memory
inline constexpr int64_t kStackBytes = 256 * 1024;  // bytes of a thread's stack

// What a report names: an instruction, and its place if that is known. Nearly all pass their
// checks, so the text is made only for a report.
struct Instruction {
  const char* name;
  Site site{nullptr, 0};

  [[nodiscard]] std::string text() const;

  std::string operator+(const std::string& what) const { return text() + what; }
};

// Thrown on a fiber to leave its kernel after fail() wrote its report.
struct LaunchFailed {};

struct Thread : ThreadView {
  int index = 0;  // in its block
  int agent = 0;  // the race detector's number for it
  Block* block = nullptr;
  boost::context::fiber fiber;      // suspended; empty while it runs and when it has ended
  std::byte* stack = nullptr;       // lowest byte; null: not started
  const char* waits_for = nullptr;  // null: ready, running or ended
  Site waits_at;
  bool ended = false;
  bool waited_for_launches = true;  // also true if it need not wait
};

struct WarpMeeting {
  uint32_t mask;
  uint32_t arrived;
  const char* name;
  Site site;
  void* operands[32];
};

struct Barrier {
  int expected = 0;  // threads; 0: no thread waits
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

// Threads and shared memory of one block; the gang decides when threads run.
class Block {
 public:
  // `rank`: the block's number in the gang; `arena`: kArenaBytes of its own.
  Block(Gang& gang, const LaunchShape& shape, Dim3 index, int rank, std::byte* arena);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Gang& gang() { return gang_; }

  [[nodiscard]] int rank() const { return rank_; }

  // Returns the running thread, one of this block's.
  Thread& self();

  std::vector<Thread>& threads() { return threads_; }

  [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()); }

  void end(Thread& thread);

  void warp_collective(uint32_t mask,
                       const char* name,
                       void* operand,
                       Complete complete,
                       bool orders_memory,
                       Site site);
  // A count of 0 means every thread of the block.
  void barrier(int id, int count, const char* name, Site site);
  void* shared(const void* key, int64_t bytes, int64_t alignment, const char* name);
  void* dynamic_shared(int64_t bytes, const char* name);

  // Suspends the running thread until wake(index).
  void wait(const char* reason, Site site);
  void wake(int index);

  // Starts an operation that happens to this block by itself, whenever the scheduler likes.
  void start_async(std::function<void()> operation);

  // Returns the offset of [p, p + bytes) in shared memory; elsewhere it is the thread's error.
  int64_t shared_offset(const void* p, int64_t bytes, const Instruction& who);
  [[nodiscard]] std::string place(int64_t offset) const;

  // Whether p is the running thread's own, in shared memory, or threadIdx and the like.
  [[nodiscard]] bool is_own(const std::byte* p) const {
    const auto* const thread = static_cast<const Thread*>(current_thread);
    const auto* const indices = reinterpret_cast<const std::byte*>(thread);
    return (p >= thread->stack && p < thread->stack + kStackBytes) ||
           (p >= arena_ && p < arena_ + kArenaBytes) ||
           (p >= indices && p < indices + sizeof(Thread));
  }

  // Returns the gang's detector; null in plain mode.
  RaceDetector* race();

  AsyncState& async() { return async_; }

  std::byte* arena() { return arena_; }

 private:
  SharedRegion& add_region(const void* key, int64_t bytes, int64_t alignment, const char* name);

  Gang& gang_;
  int rank_;
  int64_t shared_bytes_;  // dynamic bytes of the launch
  std::vector<Thread> threads_;
  std::vector<uint32_t> living_;  // by warp: its lanes that have not ended
  std::vector<std::vector<WarpMeeting*>> meetings_;  // by warp; on the first lane's stack
  Barrier barriers_[16];
  std::byte* arena_;
  int64_t arena_used_ = 0;
  std::vector<SharedRegion> regions_;
  AsyncState async_;
};

// Returns the block of the running thread or operation; there is one inside of kernels.
Block& current_block();
void add_report(const std::string& what);
[[nodiscard]] std::string describe(Site site);

// Tell the address sanitizer about memory that is no object; no effect without it.
void forbid(const void* p, int64_t bytes);
void allow(const void* p, int64_t bytes);

}  // namespace sluice::simt
