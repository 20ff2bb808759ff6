// SPDX-License-Identifier: Apache-2.0
// Which accesses to memory are ordered by something. Vector clocks: each agent (a CUDA thread, the
// wgmma unit of a warp, the copies that complete on one mbarrier, a thread's cp.async) knows up to
// which of every other agent's events it has seen. A second clock says which generic writes a proxy
// fence has made visible to the asynchronous agents.
//
// Kernels are compiled with -fsanitize=thread and linked with our __tsan_* functions, which come
// here; libtsan is not linked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace sluice::simt {

class Block;

struct Clock {
  std::vector<uint32_t> seen;     // by agent
  std::vector<uint32_t> visible;  // the same, of generic writes as asynchronous reads see them

  void join(const Clock& other);
};

// Who touched a byte, and when on that agent's clock.
struct Cell {
  uint32_t write_time = 0;  // 0: nobody wrote it yet
  uint32_t read_time = 0;   // 0: nobody read it since
  int16_t writer = 0;
  int16_t reader = 0;  // kManyReaders: read_set
  int32_t read_set = -1;
  int32_t atomic_set = -1;  // by agent, when it last changed the byte by an atomic
  bool open = false;
  bool async_write = false;
  bool atomic = false;  // there were atomics since the last write
};

inline constexpr int16_t kManyReaders = -1;

// Global memory as the blocks of one launch use it: nothing orders one block after another.
class GlobalShadow {
 public:
  struct Byte {
    Cell cell;            // of the block that touched it last
    int32_t block = -1;   // whose cell it is
    int32_t writer = -1;  // block
    int32_t reader = -1;  // block, the first
    bool many_readers = false;
  };

  Byte& at(const void* p);

 private:
  static constexpr uintptr_t kPage = 4096;
  std::unordered_map<uintptr_t, std::unique_ptr<Byte[]>> pages_;
  uintptr_t last_page_ = 0;
  Byte* last_ = nullptr;
};

// Of one block. Accesses of threads come from on_access, those of asynchronous units from read and
// write, which look at shared memory alone.
class RaceDetector {
 public:
  static constexpr int kMaxMbarriers = 32;

  RaceDetector(
      Block& block, int num_threads, std::byte* arena, int64_t arena_bytes, GlobalShadow& global);

  [[nodiscard]] int warp_unit(int warp) const { return num_threads_ + warp; }

  [[nodiscard]] int mbarrier_unit(int index) const { return num_threads_ + num_warps_ + index; }

  // The cp.async of a thread. They come into being with the first that asks.
  int copy_unit(int thread);

  // All of `threads` have met: each knows what any of them knew.
  void meet(const std::vector<int>& threads);
  // What `agent` did so far goes into `clock`, and later events are told apart from it.
  void release(int agent, Clock& clock);
  void acquire(int agent, const Clock& clock);
  // What `agent` knows goes into `clock`.
  void add_to(Clock& clock, int agent) const;
  [[nodiscard]] uint32_t now(int agent) const;
  // `agent` has seen the other's events up to `time`.
  void learn(int agent, int other, uint32_t time);
  // Only what the agent itself has written.
  void proxy_fence(int agent);
  // The agent begins an operation that knows what `clock` says and nothing else.
  void begin(int agent, const Clock& clock);
  // The same, of what the other knows.
  void begin_like(int agent, int other) { begin(agent, clocks_[static_cast<size_t>(other)]); }
  [[nodiscard]] Clock empty_clock() const;
  // Whether some thread has seen everything that the agent released.
  [[nodiscard]] bool anyone_saw_all_of(int agent) const;

  enum class Proxy : uint8_t { kGeneric, kAsync };
  void read(int agent, Proxy proxy, const void* p, int64_t bytes, const void* pc);
  void write(int agent, Proxy proxy, const void* p, int64_t bytes, const void* pc);

  // An atomic in shared memory: in any order among its like, a read and a write for others.
  void atomic(int agent, const void* p, int64_t bytes, const void* pc);

  // An access of the running thread, wherever it points.
  void on_access(void* p, int64_t bytes, bool is_write, const void* pc);
  // [offset, offset + bytes) of the arena may be used from now on.
  void open(int64_t offset, int64_t bytes);

 private:
  // Where a byte is, for reports: an offset in shared memory, or global memory.
  static constexpr int64_t kGlobal = -1;

  void global_access(std::byte* p, int64_t bytes, bool is_write, const void* pc);
  void read_cell(Cell& cell, int agent, Proxy proxy, int64_t offset, const void* pc);
  void write_cell(Cell& cell, int agent, Proxy proxy, int64_t offset, const void* pc);
  // False and reported where the byte is in no array.
  bool check_open(int64_t offset, bool is_write, int agent, const void* pc);
  void note_read(Cell& cell, int agent);
  void check_reads(const Cell& cell, int agent, int64_t offset, const void* pc);
  void check_atomics(const Cell& cell, int agent, int64_t offset, const void* pc);
  void report(const char* what, int agent, int other, int64_t offset, const void* pc);
  [[nodiscard]] std::string name(int agent) const;

  Block& block_;
  int num_threads_;
  int num_warps_;
  int num_agents_;
  bool has_copies_ = false;
  std::byte* arena_;
  int64_t arena_bytes_;
  GlobalShadow& global_;
  std::vector<Clock> clocks_;  // by agent
  std::vector<Cell> cells_;    // by byte of the arena
  std::vector<std::vector<uint32_t>> read_sets_;
  std::vector<std::vector<uint32_t>> atomic_sets_;
  std::set<std::string> told_;  // a race is reported once, whatever its bytes
};

}  // namespace sluice::simt
