// SPDX-License-Identifier: Apache-2.0
// Fibers, and the order in which they run.
#include "tests/support/simt/sched.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/support/simt/memory.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/simt/peers.h"
#include "tests/support/simt/peers_simt.h"
#include "tests/support/simt/reach.h"

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace sluice::simt {

constinit thread_local const ThreadView* current_thread = nullptr;

#ifdef SIMT_ASAN
void forbid(const void* p, int64_t bytes) {
  __asan_poison_memory_region(p, static_cast<size_t>(bytes));
}

void allow(const void* p, int64_t bytes) {
  __asan_unpoison_memory_region(p, static_cast<size_t>(bytes));
}
#else
void forbid(const void*, int64_t) {}

void allow(const void*, int64_t) {}
#endif

namespace {

constexpr unsigned kMostBlocksX = 0x7FFFFFFF;
constexpr unsigned kMostBlocksY = 0xFFFF;

struct RunState {
  bool active = false;
  uint64_t seed = 0;
  Mode mode = Mode::kPlain;
  int num_launches = 0;
  int64_t num_blocks = 0;
  std::vector<std::string> reports;
  std::optional<Reach> own_reach;  // for tests that share their heap
};

thread_local RunState run_state;
thread_local Block* block_now = nullptr;

constexpr int kHopper = 90;

thread_local int capability = kHopper;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "simt: %s\n", what);
  std::abort();
}

// Tells the address sanitizer about fibers; no effect without it.
#ifdef SIMT_ASAN
struct OtherStack {
  const void* bottom = nullptr;
  size_t bytes = 0;
};

thread_local OtherStack scheduler_stack;

void leave_for(void** saved, const void* bottom, size_t bytes) {
  __sanitizer_start_switch_fiber(saved, bottom, bytes);
}

void arrived(void* saved) { __sanitizer_finish_switch_fiber(saved, nullptr, nullptr); }

void arrived_from_scheduler(void* saved) {
  __sanitizer_finish_switch_fiber(saved, &scheduler_stack.bottom, &scheduler_stack.bytes);
}

void leave_for_scheduler(void** saved) {
  __sanitizer_start_switch_fiber(saved, scheduler_stack.bottom, scheduler_stack.bytes);
}
#else
void leave_for(void**, const void*, size_t) {}

void arrived(void*) {}

void arrived_from_scheduler(void*) {}

void leave_for_scheduler(void**) {}
#endif

// Stacks of ended fibers, for new ones.
struct StackPool {
  std::vector<std::unique_ptr<std::byte[]>> all;
  std::vector<std::byte*> unused;

  std::byte* take() {
    if (unused.empty()) {
      all.push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
      unused.push_back(all.back().get());
    }
    std::byte* const stack = unused.back();
    unused.pop_back();
    return stack;
  }
};

thread_local StackPool stack_pool;

// For boost::context::fiber: a stack that was chosen already. Their tops are in different sets of
// the caches, of which stacks of one alignment would all share the same few.
struct GivenStack {
  std::byte* bottom;

  boost::context::stack_context allocate() const {
    boost::context::stack_context context;
    const auto number = reinterpret_cast<uintptr_t>(bottom) / static_cast<uintptr_t>(kStackBytes);
    const size_t apart = number % 61 * 64;
    context.size = static_cast<size_t>(kStackBytes) - apart;
    context.sp = bottom + context.size;
    return context;
  }

  void deallocate(boost::context::stack_context&) const {
    allow(bottom, kStackBytes);
    stack_pool.unused.push_back(bottom);
  }
};

// Returns the arenas of a gang's blocks, one after the other.
std::byte* shared_arenas() {
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{1024}); }
  };

  constexpr size_t kBytes = gpu::kBlocksTogether * kArenaBytes;
  thread_local const std::unique_ptr<std::byte, Free> memory(
      static_cast<std::byte*>(::operator new (kBytes, std::align_val_t{1024})));
  return memory.get();
}

// The first seed runs the gangs in order, others in an order that tests may not rely on.
std::vector<unsigned> gang_order(unsigned count) {
  std::vector<unsigned> order(count);
  for (unsigned i = 0; i < count; ++i) order[i] = i;
  Random64 random(run_state.seed);
  for (unsigned i = count; run_state.seed != 0 && i > 1; --i) {
    std::swap(order[i - 1], order[random.below(i)]);
  }
  return order;
}

}  // namespace

Run::Run(uint64_t seed, Mode mode, bool host_waited) {
  if (run_state.active) die("a Run inside a Run");
  run_state = {.active = true,
               .seed = seed,
               .mode = mode,
               .num_launches = 0,
               .num_blocks = 0,
               .reports = {},
               .own_reach = reach == nullptr ? reach_of_shared_heap() : std::nullopt};
  if (run_state.own_reach) reach = &*run_state.own_reach;
  if (host_waited) begin_launch(false);
}

Run::~Run() {
  for (const std::string& report : run_state.reports) {
    std::fprintf(stderr, "simt: %s\n", report.c_str());
  }
  if (!run_state.reports.empty()) die("a Run ended with reports that nobody took");
  run_state.active = false;
  if (run_state.own_reach) reach = nullptr;
}

std::vector<std::string> Run::take_reports() { return std::exchange(run_state.reports, {}); }

int Run::num_launches() const { return run_state.num_launches; }

int64_t Run::num_blocks() const { return run_state.num_blocks; }

void add_report(const std::string& what) { run_state.reports.push_back(what); }

std::string describe(Site site) {
  const char* const slash = std::strrchr(site.file, '/');
  return std::string(slash == nullptr ? site.file : slash + 1) + ":" + std::to_string(site.line);
}

std::string Instruction::text() const {
  return site.file == nullptr ? name : std::string(name) + " at " + describe(site);
}

void fail(const std::string& what) {
  std::string where;
  if (current_thread != nullptr) {
    const Dim3 block = current_thread->block_idx;
    where = " (thread " + std::to_string(current_thread->thread_idx.x) + " of block " +
            std::to_string(block.x) + "," + std::to_string(block.y) + ")";
  }
  add_report(what + where);
  throw LaunchFailed{};
}

Block& current_block() { return *block_now; }

void enqueue(CUstream_st* stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  const std::scoped_lock lock(stream->mutex);
  if (stream->is_recording) {
    stream->recorded.push_back({.run = std::move(work)});
  } else {
    stream->add({.run = std::move(work)});
  }
}

namespace {

// Returns what the launch asks for that no device gives; empty: nothing.
std::string refusal_of(const LaunchShape& shape) {
  if (shape.threads < 1 || shape.threads > 1024 || shape.shared_bytes > shared_limit()) {
    return std::to_string(shape.threads) + " threads with " + std::to_string(shape.shared_bytes) +
           " bytes of shared memory a block";
  }
  if (shape.grid.x > kMostBlocksX || shape.grid.y > kMostBlocksY) {
    return "a grid of " + std::to_string(shape.grid.x) + " by " + std::to_string(shape.grid.y) +
           " blocks";
  }
  return {};
}

void run_gangs(const LaunchShape& shape,
               const std::string& refused,
               const std::function<void()>& body) {
  if (!run_state.active) die("a launch outside of any Run");
  if (block_now != nullptr) die("a launch inside a kernel");
  const uint64_t launch = static_cast<uint64_t>(run_state.num_launches++);
  if (const std::string refusal = refused.empty() ? refusal_of(shape) : refused; !refusal.empty()) {
    add_report("launch: " + refusal);
    return;
  }
  const ParameterSpace closure(&body, sizeof(body));  // threads find their arguments through it
  const size_t reports = run_state.reports.size();
  run_state.num_blocks += int64_t{shape.grid.x} * shape.grid.y;
  begin_launch(shape.overlaps);
  PeerShadow::begin_launch();
  GlobalShadow global;
  const auto in_gang = static_cast<unsigned>(shape.together);
  for (const unsigned at : gang_order(shape.grid.x * (shape.grid.y / in_gang))) {
    const uint64_t number = (launch << 32) + at;
    Gang gang(shape, at, run_state.seed + (number << 8), run_state.mode, global);
    gang.run(body);
    if (run_state.reports.size() != reports) return;
  }
}

}  // namespace

void run_grid(const LaunchShape& shape, const std::function<void()>& body) {
  run_gangs(shape, "", body);
}

void run_together(const LaunchShape& shape, const std::function<void()>& body) {
  const bool fits = shape.grid.y <= gpu::kBlocksTogether;
  run_gangs(shape, fits ? "" : std::to_string(shape.grid.y) + " blocks together", body);
}

Gang::Gang(
    const LaunchShape& shape, unsigned number, uint64_t seed, Mode mode, GlobalShadow& global)
    : number_(static_cast<int32_t>(number)),
      random_(seed),
      policy_(seed % 256 == 0       ? Policy::kLatestFirst
              : seed % 256 % 4 == 1 ? Policy::kStarveOneWarp
                                    : Policy::kRandom),
      num_alive_(shape.threads * shape.together) {
  std::byte* const arenas = shared_arenas();
  if (mode == Mode::kRace) {
    race_ = std::make_unique<RaceDetector>(*this, shape.together, shape.threads, arenas, global);
  }
  for (int rank = 0; rank < shape.together; ++rank) {
    const Dim3 index{
        number % shape.grid.x,
        number / shape.grid.x * static_cast<unsigned>(shape.together) + static_cast<unsigned>(rank),
        0};
    blocks_.push_back(
        std::make_unique<Block>(*this, shape, index, rank, arenas + rank * kArenaBytes));
  }
  for (int rank = size() - 1; rank >= 0; --rank) {
    std::vector<Thread>& threads = block(rank).threads();
    for (auto thread = threads.rbegin(); thread != threads.rend(); ++thread) {
      ready_.push_back(&*thread);
    }
  }
  if (policy_ == Policy::kStarveOneWarp) {
    const int warps = (shape.threads + 31) / 32;
    starved_warp_ = static_cast<int>(random_.below(static_cast<uint64_t>(warps * size())));
  }
}

Gang::~Gang() { abandon(); }

void Gang::run(const std::function<void()>& body) {
  try {
    while (!failed_) {
      if (ready_.empty()) {
        if (!step() && !poll_again()) break;
        continue;
      }
      if (policy_ == Policy::kRandom && random_.below(8) == 0 && step()) continue;
      Thread& thread = *ready_[pick()];
      ready_.pop_back();
      if (thread.stack == nullptr) start_thread(thread, body);
      resume(thread);
    }
  } catch (const LaunchFailed&) {  // from an asynchronous operation
    failed_ = true;
  }
  block_now = nullptr;
  if (failed_) return;
  if (num_alive_ > 0) {
    add_report("deadlock: " + who_waits());
  } else {
    check_end();
  }
}

void Gang::check_end() {
  for (const std::unique_ptr<Block>& block : blocks_) {
    block_now = block.get();
    block->async().check_end();
  }
  block_now = nullptr;
}

bool Gang::is_starved(const Thread& thread) const {
  const int warps = (thread.block->num_threads() + 31) / 32;
  return thread.block->rank() * warps + thread.index / 32 == starved_warp_;
}

// Returns the index in ready_ of the thread to run next, and moves the thread to its end.
size_t Gang::pick() {
  size_t at = ready_.size() - 1;
  if (policy_ != Policy::kLatestFirst) at = random_.below(ready_.size());
  for (size_t tried = 0; tried < ready_.size() && is_starved(*ready_[at]); ++tried) {
    at = (at + 1) % ready_.size();
  }
  std::swap(ready_[at], ready_.back());
  return ready_.size() - 1;
}

// Runs one asynchronous operation, if there is any.
bool Gang::step() {
  if (pending_.empty()) return false;
  const size_t at = policy_ == Policy::kRandom ? random_.below(pending_.size()) : 0;
  std::swap(pending_[at], pending_.back());
  const Operation operation = std::move(pending_.back());
  pending_.pop_back();
  block_now = operation.block;
  operation.run();
  return true;
}

// Returns the threads that wait for another device to those that are ready, if there are any.
bool Gang::poll_again() {
  constexpr int kSpins = 64;
  if (polling_.empty()) return false;
  if (++num_polls_ < kSpins) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  ready_.swap(polling_);
  return true;
}

void Gang::start_thread(Thread& thread, const std::function<void()>& body) {
  thread.stack = stack_pool.take();
  auto entry = [this, &thread, &body](boost::context::fiber&& scheduler) {
    arrived_from_scheduler(nullptr);
    struct Leave {
      ~Leave() { leave_for_scheduler(nullptr); }
    } leave;
    scheduler_ = std::move(scheduler);
    try {
      body();
    } catch (const LaunchFailed&) {
      failed_ = true;
    }
    end(thread);
    return std::move(scheduler_);
  };
  thread.fiber = boost::context::fiber(std::allocator_arg, GivenStack{thread.stack}, entry);
}

void Gang::resume(Thread& thread) {
  running_ = &thread;
  block_now = thread.block;
  current_thread = &thread;
  void* saved = nullptr;
  leave_for(&saved, thread.stack, static_cast<size_t>(kStackBytes));
  thread.fiber = std::move(thread.fiber).resume();
  arrived(saved);
  current_thread = nullptr;
  running_ = nullptr;
}

// Unwinds the threads that have started and not ended.
void Gang::abandon() {
  for (const std::unique_ptr<Block>& block : blocks_) {
    for (Thread& thread : block->threads()) {
      if (!thread.fiber) continue;
      void* saved = nullptr;
      leave_for(&saved, thread.stack, static_cast<size_t>(kStackBytes));
      thread.fiber = {};
      arrived(saved);
    }
  }
}

void Gang::wait(const char* reason, Site site) {
  Thread& thread = running();
  thread.waits_for = reason;
  thread.waits_at = site;

  struct Arrive {
    void* saved = nullptr;

    ~Arrive() { arrived_from_scheduler(saved); }
  };

  {
    Arrive arrive;  // also runs when the fiber is unwound from here
    leave_for_scheduler(&arrive.saved);
    scheduler_ = std::move(scheduler_).resume();
  }
  thread.waits_for = nullptr;
}

void Gang::poll(const char* reason, Site site) {
  polling_.push_back(&running());
  wait(reason, site);
}

void Gang::end(Thread& thread) {
  if (!failed_) failed_ = !may_end(thread);
  thread.block->end(thread);
  --num_alive_;
}

std::string Gang::place(int64_t offset) const {
  const int64_t rank = offset / kArenaBytes;
  const std::string place = blocks_[static_cast<size_t>(rank)]->place(offset % kArenaBytes);
  return size() > 1 ? "block " + std::to_string(rank) + "'s " + place : place;
}

std::string Gang::who_waits() const {
  std::vector<std::pair<std::string, int>> groups;
  for (const std::unique_ptr<Block>& block : blocks_) {
    const std::string whose = size() > 1 ? " in block " + std::to_string(block->rank()) : "";
    for (const Thread& thread : block->threads()) {
      const std::string what =
          (thread.ended
               ? "left the kernel"
               : "wait in " + std::string(thread.waits_for == nullptr ? "" : thread.waits_for) +
                     " at " + describe(thread.waits_at)) +
          whose;
      const auto found = std::find_if(
          groups.begin(), groups.end(), [&](const auto& group) { return group.first == what; });
      if (found == groups.end()) {
        groups.emplace_back(what, 1);
      } else {
        ++found->second;
      }
    }
  }
  std::string text;
  for (const auto& [what, count] : groups) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " threads " + what;
  }
  return text;
}

GivenDevice::GivenDevice(int compute_capability) { capability = compute_capability; }

GivenDevice::~GivenDevice() { capability = kHopper; }

}  // namespace sluice::simt

namespace sluice::gpu {

int compute_capability() { return simt::capability; }

}  // namespace sluice::gpu
