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

class Cluster;

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

// Global memory as the clusters of one launch use it: nothing orders one after another but arrivals
// at counters.
class GlobalShadow {
 public:
  struct Byte {
    Cell cell;             // of the cluster that touched it last
    int32_t cluster = -1;  // whose cell it is
    int32_t writer = -1;   // cluster
    int16_t agent = 0;     // of it, which wrote the byte last
    uint32_t time = 0;     // when it did, on its clock
    int32_t reader = -1;   // cluster, the first
    bool many_readers = false;
  };

  // What was in front of an arrival: all that a thread of the cluster knew at its last fence.
  struct Arrival {
    int32_t cluster;
    Clock clock;
  };

  Byte& at(const void* p);

  // Of a counter, in order.
  std::vector<Arrival>& arrivals(const void* counter) { return arrivals_[counter]; }

  [[nodiscard]] bool is_counter(const void* p) const { return arrivals_.contains(p); }

 private:
  static constexpr uintptr_t kPage = 4096;
  std::unordered_map<uintptr_t, std::unique_ptr<Byte[]>> pages_;
  std::unordered_map<const void*, std::vector<Arrival>> arrivals_;
  uintptr_t last_page_ = 0;
  Byte* last_ = nullptr;
};

// Of one cluster. Accesses of threads come from on_access, those of asynchronous units from read
// and write, which look at shared memory alone. Agents are numbered through all blocks; what a
// block has of a kind is named by the block's rank and its number there.
class RaceDetector {
 public:
  static constexpr int kMaxMbarriers = 32;  // of a block

  // `arenas`: of the blocks, one behind the other.
  RaceDetector(Cluster& cluster,
               int num_blocks,
               int num_threads,
               std::byte* arenas,
               GlobalShadow& global);

  [[nodiscard]] int thread(int rank, int index) const { return rank * block_threads_ + index; }

  [[nodiscard]] int warp_unit(int rank, int warp) const {
    return first_warp_ + rank * block_warps_ + warp;
  }

  [[nodiscard]] int mbarrier_unit(int rank, int index) const {
    return first_mbarrier_ + rank * kMaxMbarriers + index;
  }

  // The cp.async of a thread. They come into being with the first that asks.
  int copy_unit(int rank, int thread);

  // All of these threads of a block have met: each knows what any of them knew.
  void meet(int rank, const std::vector<int>& threads);
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
  // Whether some thread of the block has seen the agent's events up to `time`.
  [[nodiscard]] bool block_saw(int rank, int agent, uint32_t time) const;

  enum class Proxy : uint8_t { kGeneric, kAsync };
  void read(int agent, Proxy proxy, const void* p, int64_t bytes, const void* pc);
  void write(int agent, Proxy proxy, const void* p, int64_t bytes, const void* pc);

  // An atomic in shared memory: in any order among its like, a read and a write for others.
  void atomic(int agent, const void* p, int64_t bytes, const void* pc);

  // What the agent knows is in front of its next arrival; what it met at counters it knows now.
  void device_fence(int agent);
  // At a counter in global memory, where it meets all who arrived before.
  void arrive(int agent, const void* counter);

  // An access of the running thread, wherever it points.
  void on_access(void* p, int64_t bytes, bool is_write, const void* pc);
  // [p, p + bytes) of an arena may be used from now on.
  void open(const std::byte* p, int64_t bytes);
  [[nodiscard]] std::string name(int agent) const;

 private:
  // Where a byte is, for reports: an offset in the arenas, or global memory.
  static constexpr int64_t kGlobal = -1;

  // What an agent knows of other clusters since a fence of its own, as does who has seen the fence.
  struct Learned {
    int agent;
    uint32_t time;
    std::vector<GlobalShadow::Arrival> arrivals;
  };

  // Whether the agent knows of another cluster's last write of the byte.
  [[nodiscard]] bool knows_write(int agent, const GlobalShadow::Byte& byte) const;
  void global_access(std::byte* p, int64_t bytes, bool is_write, const void* pc);
  void read_cell(Cell& cell, int agent, Proxy proxy, int64_t offset, const void* pc);
  void write_cell(Cell& cell, int agent, Proxy proxy, int64_t offset, const void* pc);
  // Of a byte of the arenas; null and reported where it is in no array.
  Cell* open_cell(int64_t offset, bool is_write, int agent, const void* pc);
  void note_read(Cell& cell, int agent);
  void check_reads(const Cell& cell, int agent, int64_t offset, const void* pc);
  void check_atomics(const Cell& cell, int agent, int64_t offset, const void* pc);
  void report(const char* what, int agent, int other, int64_t offset, const void* pc);

  Cluster& cluster_;
  int num_blocks_;
  int block_threads_;
  int block_warps_;
  int first_warp_;  // agents: threads, then warps' units, then mbarriers' copies, then cp.async
  int first_mbarrier_;
  int first_copy_;
  int num_agents_;
  std::byte* arenas_;
  GlobalShadow& global_;
  std::vector<Clock> clocks_;             // by agent
  std::vector<std::vector<Cell>> cells_;  // by block and byte of its arena
  std::vector<std::vector<uint32_t>> read_sets_;
  std::vector<std::vector<uint32_t>> atomic_sets_;
  std::unordered_map<int, Clock> fenced_;  // by agent: what it knew at its last device_fence
  std::unordered_map<int, std::vector<GlobalShadow::Arrival>> met_;  // by agent, since then
  std::vector<Learned> learned_;
  std::set<std::string> told_;  // a race is reported once, whatever its bytes
};

}  // namespace sluice::simt
