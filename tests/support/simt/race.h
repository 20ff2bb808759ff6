// SPDX-License-Identifier: Apache-2.0
// Finds accesses to memory that nothing orders, by vector clocks: each agent (a CUDA thread, the
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
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace sluice::simt {

class Gang;

struct Clock {
  std::vector<uint32_t> seen;     // by agent
  std::vector<uint32_t> visible;  // likewise, generic writes as asynchronous reads see them

  void join(const Clock& other);
};

// The agents that touched a byte, and the times on their clocks.
struct Cell {
  uint32_t write_time = 0;  // 0: never written
  uint32_t read_time = 0;   // 0: not read since
  int16_t writer = 0;
  int16_t reader = 0;  // kManyReaders: read_set
  int32_t read_set = -1;
  int32_t atomic_set = -1;  // by agent: times of its latest atomic changes
  bool open = false;
  bool async_write = false;
  bool atomic = false;  // whether there were atomics since the last write
};

inline constexpr int16_t kManyReaders = -1;

// Global memory as one launch's gangs use it: only arrivals at counters order gangs.
class GlobalShadow {
 public:
  struct Byte {
    Cell cell;             // the last gang's to touch it
    int32_t gang = -1;     // the gang that owns `cell`
    int32_t writer = -1;   // the gang that wrote it last
    int16_t agent = 0;     // the agent there that wrote it last
    uint32_t time = 0;     // that agent's time of the write
    int32_t reader = -1;   // the first gang that read it
    bool many_readers = false;
  };

  // Everything in front of an arrival: a thread's knowledge of the gang at its last fence.
  struct Arrival {
    int32_t gang;
    Clock clock;
  };

  Byte& at(const void* p);

  // Returns a counter's arrivals, in order.
  std::vector<Arrival>& arrivals(const void* counter) { return arrivals_[counter]; }

  [[nodiscard]] bool is_counter(const void* p) const { return arrivals_.contains(p); }

 private:
  static constexpr uintptr_t kPage = 4096;
  std::unordered_map<uintptr_t, std::unique_ptr<Byte[]>> pages_;
  std::unordered_map<const void*, std::vector<Arrival>> arrivals_;
  uintptr_t last_page_ = 0;
  Byte* last_ = nullptr;
};

// Detects the races of one gang. on_access takes threads' accesses, read and write those of
// asynchronous units, to shared memory alone. Agents are numbered through all blocks; a block's
// agents of a kind are named by the block's rank and their number there.
class RaceDetector {
 public:
  static constexpr int kMaxMbarriers = 32;  // in a block

  // `arenas`: the blocks', one behind the other.
  RaceDetector(
      Gang& gang, int num_blocks, int num_threads, std::byte* arenas, GlobalShadow& global);

  [[nodiscard]] int thread(int rank, int index) const { return rank * block_threads_ + index; }

  [[nodiscard]] int warp_unit(int rank, int warp) const {
    return first_warp_ + rank * block_warps_ + warp;
  }

  [[nodiscard]] int mbarrier_unit(int rank, int index) const {
    return first_mbarrier_ + rank * kMaxMbarriers + index;
  }

  // Returns the agent of a thread's cp.async. The first call makes these agents.
  int copy_unit(int rank, int thread);

  // All of these threads of a block have met: each knows what any of them knew.
  void meet(int rank, std::span<const int> threads);
  // Adds the agent's events so far to `clock`; its later events are told apart from them.
  void release(int agent, Clock& clock);
  void acquire(int agent, const Clock& clock);
  // Adds the agent's knowledge to `clock`.
  void add_to(Clock& clock, int agent) const;
  [[nodiscard]] uint32_t now(int agent) const;
  // `agent` has seen the other agent's events up to `time`.
  void learn(int agent, int other, uint32_t time);
  // Makes the agent's own writes visible to asynchronous agents, and only those.
  void proxy_fence(int agent);
  // Begins an operation of the agent that knows exactly what `clock` says.
  void begin(int agent, const Clock& clock);
  // Begins an operation that knows what the other agent knows.
  void begin_like(int agent, int other) { begin(agent, clocks_[static_cast<size_t>(other)]); }
  [[nodiscard]] Clock empty_clock() const;
  // Whether some thread has seen everything that the agent released.
  [[nodiscard]] bool anyone_saw_all_of(int agent) const;

  enum class Proxy : uint8_t { kGeneric, kAsync };
  void read(int agent, Proxy proxy, const void* p, int64_t bytes, const void* pc);
  void write(int agent, Proxy proxy, const void* p, int64_t bytes, const void* pc);

  // An atomic in shared memory: unordered among atomics, a read and a write to other accesses.
  void atomic(int agent, const void* p, int64_t bytes, const void* pc);

  // Puts the agent's knowledge in front of its next arrival, and adds to it what counters told.
  void device_fence(int agent);
  // Arrives at a counter in global memory, where the agent meets all that arrived before.
  void arrive(int agent, const void* counter);

  // Tells a number to other devices, and sees what another one has told (peers.h).
  void tell(int agent, const uint32_t* word, uint32_t number);
  void see(int agent, const uint32_t* word, uint32_t number) const;

  // Checks an access of the running thread to any memory.
  void on_access(void* p, int64_t bytes, bool is_write, const void* pc);
  // Allows uses of [p, p + bytes) of an arena from now on.
  void open(const std::byte* p, int64_t bytes);
  [[nodiscard]] std::string name(int agent) const;

 private:
  // The place of a byte, for reports: an offset in the arenas, or global memory.
  static constexpr int64_t kGlobal = -1;

  // An agent's knowledge of other gangs since its own fence; agents that saw the fence share it.
  struct Learned {
    int agent;
    uint32_t time;
    std::vector<GlobalShadow::Arrival> arrivals;
  };

  // Whether the agent knows of another gang's last write of the byte.
  [[nodiscard]] bool knows_write(int agent, const GlobalShadow::Byte& byte) const;
  void global_access(std::byte* p, int64_t bytes, bool is_write, const void* pc);
  void read_cell(Cell& cell, int agent, Proxy proxy, int64_t offset, const void* pc);
  void write_cell(Cell& cell, int agent, Proxy proxy, int64_t offset, const void* pc);
  // Returns the cell of a byte of the arenas; null, with a report, if it is in no array.
  Cell* open_cell(int64_t offset, bool is_write, int agent, const void* pc);
  void note_read(Cell& cell, int agent);
  void check_reads(const Cell& cell, int agent, int64_t offset, const void* pc);
  void check_atomics(const Cell& cell, int agent, int64_t offset, const void* pc);
  void report(const char* what, int agent, int other, int64_t offset, const void* pc);

  Gang& gang_;
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
  std::unordered_map<int, Clock> fenced_;  // by agent: its knowledge at its last device_fence
  std::unordered_map<int, std::vector<GlobalShadow::Arrival>> met_;  // by agent: arrivals since
                                                                     // then
  std::vector<Learned> learned_;
  std::set<std::string> told_;  // reported races; each is reported once for all of its bytes
};

}  // namespace sluice::simt
