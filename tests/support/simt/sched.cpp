// SPDX-License-Identifier: Apache-2.0
// Fibers, the order they run in, and what makes them wait for each other.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/simt/block.h"
#include "tests/support/simt/memory.h"

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

namespace {

constexpr int64_t kStackBytes = 256 * 1024;
constexpr int64_t kArenaBytes = 512 * 1024;
constexpr int64_t kSharedLimit = 227 * 1024;  // of a block on sm_90
constexpr int64_t kDeclaredLimit = 48 * 1024;  // of it, without the dynamic part
constexpr int64_t kRedZone = 256;
constexpr unsigned kMostBlocksX = 0x7FFFFFFF;
constexpr unsigned kMostBlocksY = 0xFFFF;

struct RunState {
  bool active = false;
  uint64_t seed = 0;
  Mode mode = Mode::kPlain;
  int num_launches = 0;
  std::vector<std::string> reports;
};

thread_local RunState run_state;
thread_local Block* block_now = nullptr;

constexpr int kHopper = 90;

thread_local int capability = kHopper;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "simt: %s\n", what);
  std::abort();
}

// What the address sanitizer must know about fibers; nothing without it.
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

void forbid(const void* p, int64_t bytes) {
  __asan_poison_memory_region(p, static_cast<size_t>(bytes));
}

void allow(const void* p, int64_t bytes) {
  __asan_unpoison_memory_region(p, static_cast<size_t>(bytes));
}
#else
void leave_for(void**, const void*, size_t) {}

void arrived(void*) {}

void arrived_from_scheduler(void*) {}

void leave_for_scheduler(void**) {}

void forbid(const void*, int64_t) {}

void allow(const void*, int64_t) {}
#endif

// Stacks of fibers that have ended, for those that start.
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

// For boost::context::fiber: the stack that was chosen already.
struct GivenStack {
  std::byte* bottom;

  boost::context::stack_context allocate() const {
    boost::context::stack_context context;
    context.size = static_cast<size_t>(kStackBytes);
    context.sp = bottom + kStackBytes;
    return context;
  }

  void deallocate(boost::context::stack_context&) const {
    allow(bottom, kStackBytes);
    stack_pool.unused.push_back(bottom);
  }
};

std::byte* shared_arena() {
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{1024}); }
  };

  thread_local const std::unique_ptr<std::byte, Free> memory(
      static_cast<std::byte*>(::operator new (kArenaBytes, std::align_val_t{1024})));
  return memory.get();
}

int lowest_lane(uint32_t mask) { return __builtin_ctz(mask); }

// The first seed runs the blocks in order, the others in one that nobody may rely on.
std::vector<unsigned> block_order(unsigned count) {
  std::vector<unsigned> order(count);
  for (unsigned i = 0; i < count; ++i) order[i] = i;
  Random64 random(run_state.seed);
  for (unsigned i = count; run_state.seed != 0 && i > 1; --i) {
    std::swap(order[i - 1], order[random.below(i)]);
  }
  return order;
}

std::string hex(uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08x", mask);
  return text;
}

}  // namespace

Run::Run(uint64_t seed, Mode mode) {
  if (run_state.active) die("a Run inside a Run");
  run_state = {.active = true, .seed = seed, .mode = mode, .num_launches = 0, .reports = {}};
}

Run::~Run() {
  for (const std::string& report : run_state.reports) {
    std::fprintf(stderr, "simt: %s\n", report.c_str());
  }
  if (!run_state.reports.empty()) die("a Run ended with reports that nobody took");
  run_state.active = false;
}

std::vector<std::string> Run::take_reports() { return std::exchange(run_state.reports, {}); }

int Run::num_launches() const { return run_state.num_launches; }

void add_report(const std::string& what) { run_state.reports.push_back(what); }

std::string describe(Site site) {
  const char* const slash = std::strrchr(site.file, '/');
  return std::string(slash == nullptr ? site.file : slash + 1) + ":" + std::to_string(site.line);
}

void fail(const std::string& what) {
  std::string where;
  if (current_thread != nullptr) {
    where = " (thread " + std::to_string(current_thread->thread_idx.x) + " of block " +
            std::to_string(current_thread->block_idx.x) + ")";
  }
  add_report(what + where);
  throw LaunchFailed{};
}

Block& current_block() { return *block_now; }

void enqueue(CUstream_st* stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  const std::scoped_lock lock(stream->mutex);
  if (stream->is_recording) {
    stream->recorded.push_back(std::move(work));
  } else {
    stream->work.push_back(std::move(work));
  }
}

void run_grid(const LaunchShape& shape, const std::function<void()>& body) {
  if (!run_state.active) die("a launch outside of any Run");
  if (block_now != nullptr) die("a launch inside a kernel");
  const uint64_t launch = static_cast<uint64_t>(run_state.num_launches++);
  if (shape.threads < 1 || shape.threads > 1024 || shape.shared_bytes > kSharedLimit) {
    add_report("launch: " + std::to_string(shape.threads) + " threads with " +
               std::to_string(shape.shared_bytes) + " bytes of shared memory a block");
    return;
  }
  if (shape.grid.x > kMostBlocksX || shape.grid.y > kMostBlocksY) {
    add_report("launch: a grid of " + std::to_string(shape.grid.x) + " by " +
               std::to_string(shape.grid.y) + " blocks");
    return;
  }
  const size_t reports = run_state.reports.size();
  GlobalShadow global;
  for (const unsigned at : block_order(shape.grid.x * shape.grid.y)) {
    const Dim3 index{at % shape.grid.x, at / shape.grid.x, 0};
    const uint64_t number = (launch << 32) + at;
    Block block(shape, index, run_state.seed + (number << 8), run_state.mode, global);
    block_now = &block;
    block.run(body);
    block_now = nullptr;
    if (run_state.reports.size() != reports) return;
  }
}

Block::Block(const LaunchShape& shape, Dim3 index, uint64_t seed, Mode mode, GlobalShadow& global)
    : shape_(shape),
      random_(seed),
      policy_(seed % 256 == 0       ? Policy::kLatestFirst
              : seed % 256 % 4 == 1 ? Policy::kStarveOneWarp
                                    : Policy::kRandom),
      threads_(static_cast<size_t>(shape.threads)),
      meetings_(static_cast<size_t>((shape.threads + 31) / 32)),
      arena_(shared_arena()),
      async_(shape.threads) {
  for (int i = 0; i < shape.threads; ++i) {
    Thread& thread = threads_[static_cast<size_t>(i)];
    thread.index = i;
    thread.thread_idx = {static_cast<unsigned>(i), 0, 0};
    thread.block_idx = index;
    thread.block_dim = {static_cast<unsigned>(shape.threads), 1, 1};
    thread.grid_dim = shape.grid;
    ready_.push_back(shape.threads - 1 - i);
  }
  if (policy_ == Policy::kStarveOneWarp) {
    starved_warp_ = static_cast<int>(random_.below(meetings_.size()));
  }
  forbid(arena_, kArenaBytes);
  if (mode == Mode::kRace) {
    race_ = std::make_unique<RaceDetector>(*this, shape.threads, arena_, kArenaBytes, global);
  }
  if (shape.shared_bytes > 0) {
    add_region(nullptr, shape.shared_bytes, 1024, "dynamic shared memory");
  }
}

Block::~Block() {
  abandon();
  allow(arena_, kArenaBytes);
}

void Block::run(const std::function<void()>& body) {
  try {
    while (!failed_) {
      if (ready_.empty()) {
        if (!step()) break;
        continue;
      }
      if (policy_ == Policy::kRandom && random_.below(8) == 0 && step()) continue;
      Thread& thread = threads_[static_cast<size_t>(ready_[pick()])];
      ready_.pop_back();
      if (thread.stack == nullptr) start_thread(thread, body);
      resume(thread);
    }
  } catch (const LaunchFailed&) {  // in an asynchronous operation
    failed_ = true;
  }
  if (failed_) return;
  if (num_ended_ != num_threads()) {
    add_report("deadlock: " + who_waits());
  } else {
    async_.check_end();
  }
}

// The index in ready_ of who runs next, which is moved to its end.
size_t Block::pick() {
  size_t at = ready_.size() - 1;
  if (policy_ != Policy::kLatestFirst) at = random_.below(ready_.size());
  for (size_t tried = 0; tried < ready_.size() && ready_[at] / 32 == starved_warp_; ++tried) {
    at = (at + 1) % ready_.size();
  }
  std::swap(ready_[at], ready_.back());
  return ready_.size() - 1;
}

// Runs one asynchronous operation, if there is any.
bool Block::step() {
  if (pending_.empty()) return false;
  const size_t at = policy_ == Policy::kRandom ? random_.below(pending_.size()) : 0;
  std::swap(pending_[at], pending_.back());
  const std::function<void()> operation = std::move(pending_.back());
  pending_.pop_back();
  operation();
  return true;
}

void Block::start_thread(Thread& thread, const std::function<void()>& body) {
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
    thread.ended = true;
    ++num_ended_;
    return std::move(scheduler_);
  };
  thread.fiber = boost::context::fiber(std::allocator_arg, GivenStack{thread.stack}, entry);
}

void Block::resume(Thread& thread) {
  running_ = thread.index;
  current_thread = &thread;
  void* saved = nullptr;
  leave_for(&saved, thread.stack, static_cast<size_t>(kStackBytes));
  thread.fiber = std::move(thread.fiber).resume();
  arrived(saved);
  current_thread = nullptr;
  running_ = -1;
}

// Unwinds what has started and not ended.
void Block::abandon() {
  for (Thread& thread : threads_) {
    if (!thread.fiber) continue;
    void* saved = nullptr;
    leave_for(&saved, thread.stack, static_cast<size_t>(kStackBytes));
    thread.fiber = {};
    arrived(saved);
  }
}

void Block::wait(const char* reason, Site site) {
  Thread& thread = self();
  thread.waits_for = reason;
  thread.waits_at = site;

  struct Arrive {
    void* saved = nullptr;

    ~Arrive() { arrived_from_scheduler(saved); }
  };

  {
    Arrive arrive;  // also when the fiber is unwound from here
    leave_for_scheduler(&arrive.saved);
    scheduler_ = std::move(scheduler_).resume();
  }
  thread.waits_for = nullptr;
}

void Block::wake(int index) { ready_.push_back(index); }

std::string Block::who_waits() const {
  std::vector<std::pair<std::string, int>> groups;
  for (const Thread& thread : threads_) {
    const std::string what =
        thread.ended
            ? "left the kernel"
            : "wait in " + std::string(thread.waits_for == nullptr ? "" : thread.waits_for) +
                  " at " + describe(thread.waits_at);
    const auto found = std::find_if(
        groups.begin(), groups.end(), [&](const auto& group) { return group.first == what; });
    if (found == groups.end()) {
      groups.emplace_back(what, 1);
    } else {
      ++found->second;
    }
  }
  std::string text;
  for (const auto& [what, count] : groups) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " threads " + what;
  }
  return text;
}

void Block::warp_collective(uint32_t mask,
                            const char* name,
                            void* operand,
                            Complete complete,
                            bool orders_memory,
                            Site site) {
  const Thread& thread = self();
  const int warp = thread.index / 32;
  const int lane = thread.index % 32;
  const std::string here = std::string(name) + " at " + describe(site);
  if ((mask >> lane & 1U) == 0) fail(here + ": a lane outside of its own mask " + hex(mask));
  for (int other = 0; other < 32; ++other) {
    if ((mask >> other & 1U) == 0) continue;
    const int index = warp * 32 + other;
    if (index >= num_threads() || threads_[static_cast<size_t>(index)].ended) {
      fail(here + ": mask " + hex(mask) + " names lane " + std::to_string(other) +
           ", which has left the kernel or never was");
    }
  }
  std::vector<WarpMeeting*>& meetings = meetings_[static_cast<size_t>(warp)];
  WarpMeeting own{.mask = mask, .arrived = 0, .name = name, .site = site, .operands = {}};
  WarpMeeting* meeting = nullptr;
  for (WarpMeeting* const open : meetings) {
    // Lanes may do something among themselves first while others wait for them; masks that never
    // agree end as a deadlock.
    if (open->mask != mask) continue;
    if (std::strcmp(open->name, name) != 0 || open->site.line != site.line) {
      fail(here + ": other lanes wait in " + open->name + " at " + describe(open->site));
    }
    meeting = open;
  }
  if (meeting == nullptr) {
    meeting = &own;
    meetings.push_back(meeting);
  }
  meeting->operands[lane] = operand;
  meeting->arrived |= 1U << lane;
  if (meeting->arrived != mask) {
    wait(name, site);
    return;
  }
  std::erase(meetings, meeting);
  complete(meeting->operands, mask);
  std::vector<int> lanes;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    lanes.push_back(warp * 32 + lowest_lane(left));
    if (lanes.back() != thread.index) wake(lanes.back());
  }
  if (orders_memory && race_ != nullptr) race_->meet(lanes);
}

void Block::barrier(int id, int count, const char* name, Site site) {
  const std::string here = std::string(name) + " at " + describe(site);
  if (count == 0) count = num_threads();
  if (id < 0 || id >= 16 || count % 32 != 0 || count > num_threads()) {
    // A last warp that is not full takes part in __syncthreads as if it were.
    if (id < 0 || id >= 16 || count != num_threads()) {
      fail(here + ": barrier " + std::to_string(id) + " of " + std::to_string(count) + " threads");
    }
  }
  Barrier& barrier = barriers_[id];
  if (barrier.expected == 0) {
    barrier.expected = count;
    barrier.name = name;
    barrier.site = site;
  }
  // A named barrier may be met from two places (producer and consumer), __syncthreads may not.
  const bool same_place = barrier.site.line == site.line || id != 0;
  if (barrier.expected != count || std::strcmp(barrier.name, name) != 0 || !same_place) {
    fail(here + " of " + std::to_string(count) + " threads: others wait in " + barrier.name +
         " at " + describe(barrier.site) + " of " + std::to_string(barrier.expected));
  }
  barrier.waiting.push_back(self().index);
  if (static_cast<int>(barrier.waiting.size()) < count) {
    wait(name, site);
    return;
  }
  if (race_ != nullptr) race_->meet(barrier.waiting);
  for (const int index : barrier.waiting) {
    if (index != self().index) wake(index);
  }
  barrier.waiting.clear();
  barrier.expected = 0;
}

SharedRegion& Block::add_region(const void* key,
                                int64_t bytes,
                                int64_t alignment,
                                const char* name) {
  const int64_t begin = (arena_used_ + kRedZone + alignment - 1) / alignment * alignment;
  int64_t total = bytes;
  int64_t declared = key == nullptr ? 0 : bytes;
  for (const SharedRegion& region : regions_) {
    total += region.bytes;
    if (region.key != nullptr) declared += region.bytes;
  }
  if (declared > kDeclaredLimit) {
    fail(std::string(name) + ": a kernel declares " + std::to_string(declared) +
         " bytes of shared memory, more than 48 KB");
  }
  if (total > kSharedLimit) {
    fail(std::string(name) + ": " + std::to_string(total) + " bytes of shared memory in a block");
  }
  arena_used_ = begin + bytes + kRedZone;
  allow(arena_ + begin, bytes);
  std::memset(arena_ + begin, 0xFF, static_cast<size_t>(bytes));  // NaN, and no likely index
  if (race_ != nullptr) race_->open(begin, bytes);
  return regions_.emplace_back(SharedRegion{key, name, begin, bytes});
}

void* Block::shared(const void* key, int64_t bytes, int64_t alignment, const char* name) {
  for (const SharedRegion& region : regions_) {
    if (region.key == key) return arena_ + region.begin;
  }
  return arena_ + add_region(key, bytes, alignment, name).begin;
}

void* Block::dynamic_shared(int64_t bytes, const char* name) {
  if (regions_.empty() || regions_[0].key != nullptr || regions_[0].bytes < bytes) {
    fail(std::string(name) + ": " + std::to_string(bytes) + " bytes of dynamic shared memory, " +
         std::to_string(shape_.shared_bytes) + " at the launch");
  }
  return arena_ + regions_[0].begin;
}

bool Block::on_stack(const std::byte* p) {
  const std::byte* const stack = self().stack;
  return p >= stack && p < stack + kStackBytes;
}

bool Block::is_own(const std::byte* p) {
  const auto* const indices = reinterpret_cast<const std::byte*>(&self());
  return on_stack(p) || (p >= arena_ && p < arena_ + kArenaBytes) ||
         (p >= indices && p < indices + sizeof(Thread));
}

int64_t Block::shared_offset(const void* p, int64_t bytes, const char* who) {
  const int64_t offset = static_cast<const std::byte*>(p) - arena_;
  for (const SharedRegion& region : regions_) {
    if (offset >= region.begin && offset + bytes <= region.begin + region.bytes) return offset;
  }
  fail(std::string(who) + ": " + std::to_string(bytes) + " bytes that are not in shared memory");
}

std::string Block::place(int64_t offset) const {
  for (const SharedRegion& region : regions_) {
    if (offset >= region.begin - kRedZone && offset < region.begin + region.bytes + kRedZone) {
      return region.name + " + " + std::to_string(offset - region.begin);
    }
  }
  return "shared memory + " + std::to_string(offset);
}

void warp_collective(uint32_t mask,
                     const char* name,
                     void* operand,
                     Complete complete,
                     bool orders_memory,
                     Site site) {
  current_block().warp_collective(mask, name, operand, complete, orders_memory, site);
}

void block_barrier(int id, int count, const char* name, Site site) {
  current_block().barrier(id, count, name, site);
}

void* shared_memory(const void* key, int64_t bytes, int64_t alignment, const char* name) {
  return current_block().shared(key, bytes, alignment, name);
}

void* dynamic_shared_memory(int64_t bytes, const char* name) {
  return current_block().dynamic_shared(bytes, name);
}

GivenDevice::GivenDevice(int compute_capability) { capability = compute_capability; }

GivenDevice::~GivenDevice() { capability = kHopper; }

void complete_nothing(void* const*, uint32_t) {}

void complete_shuffle(void* const operands[32], uint32_t mask) {
  uint32_t values[32] = {};
  for (int lane = 0; lane < 32; ++lane) {
    if (operands[lane] != nullptr)
      values[lane] = static_cast<ShuffleOperand*>(operands[lane])->value;
  }
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    auto& operand = *static_cast<ShuffleOperand*>(operands[lowest_lane(left)]);
    if (operand.source < 0 || operand.source > 31 || (mask >> operand.source & 1U) == 0) {
      fail("a shuffle reads lane " + std::to_string(operand.source) + " outside of its mask " +
           hex(mask));
    }
    operand.value = values[operand.source];
  }
}

void complete_max(void* const operands[32], uint32_t mask) {
  uint32_t result = 0;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    result = std::max(result, *static_cast<uint32_t*>(operands[lowest_lane(left)]));
  }
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    *static_cast<uint32_t*>(operands[lowest_lane(left)]) = result;
  }
}

void complete_match(void* const operands[32], uint32_t mask) {
  uint32_t values[32] = {};
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = lowest_lane(left);
    values[lane] = *static_cast<uint32_t*>(operands[lane]);
  }
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = lowest_lane(left);
    uint32_t same = 0;
    for (uint32_t other = mask; other != 0; other &= other - 1) {
      if (values[lowest_lane(other)] == values[lane]) same |= other & -other;
    }
    *static_cast<uint32_t*>(operands[lane]) = same;
  }
}

void complete_add(void* const operands[32], uint32_t mask) {
  uint32_t result = 0;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    result += *static_cast<uint32_t*>(operands[lowest_lane(left)]);
  }
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    *static_cast<uint32_t*>(operands[lowest_lane(left)]) = result;
  }
}

}  // namespace sluice::simt

namespace sluice::gpu {
namespace {

template <typename T>
T add(T* p, T value, const void* pc) {
  simt::Block& block = simt::current_block();
  const int64_t offset = block.shared_offset(p, sizeof(T), "shared_add");
  if (offset % static_cast<int64_t>(sizeof(T)) != 0) simt::fail("shared_add: not aligned");
  if (block.race() != nullptr) block.race()->atomic(block.self().index, p, sizeof(T), pc);
  const T before = *p;
  *p = before + value;
  return before;
}

}  // namespace

int compute_capability() { return simt::capability; }

uint32_t shared_add(uint32_t* p, uint32_t value) {
  return add(p, value, __builtin_return_address(0));
}

unsigned long long shared_add(unsigned long long* p, unsigned long long value) {
  return add(p, value, __builtin_return_address(0));
}

}  // namespace sluice::gpu
