// SPDX-License-Identifier: Apache-2.0
// One block: the barriers of its threads, and its shared memory.
#include "tests/support/simt/block.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "engine/core/types.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/simt/reach.h"
#include "tests/support/simt/sched.h"

namespace sluice::simt {
namespace {

constexpr int64_t kDeclaredLimit = 48 * 1024;  // bytes of a block's without the dynamic part
constexpr int64_t kDynamicAlignment = 1024;    // gpu.h
constexpr int64_t kRedZone = 256;

int lowest_lane(uint32_t mask) { return __builtin_ctz(mask); }

std::string hex(uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08x", mask);
  return text;
}

}  // namespace

int64_t shared_limit() {
  switch (const int capability = gpu::compute_capability(); capability / 10) {
    case 8:
      return (capability == 86 || capability == 89 ? 99 : 163) * 1024;
    case 12:
      return 99 * 1024;
    default:
      return 227 * 1024;
  }
}

Block::Block(Gang& gang, const LaunchShape& shape, Dim3 index, int rank, std::byte* arena)
    : gang_(gang),
      rank_(rank),
      shared_bytes_(shape.shared_bytes),
      threads_(static_cast<size_t>(shape.threads)),
      living_(static_cast<size_t>((shape.threads + 31) / 32)),
      meetings_(living_.size()),
      arena_(arena),
      async_(shape.threads) {
  for (int i = 0; i < shape.threads; ++i) {
    Thread& thread = threads_[static_cast<size_t>(i)];
    living_[static_cast<size_t>(i / 32)] |= 1U << (i % 32);
    thread.index = i;
    thread.agent = rank * shape.threads + i;
    thread.block = this;
    thread.thread_idx = {static_cast<unsigned>(i), 0, 0};
    thread.block_idx = index;
    thread.block_dim = {static_cast<unsigned>(shape.threads), 1, 1};
    thread.grid_dim = shape.grid;
    thread.waited_for_launches = !shape.overlaps;
  }
  forbid(arena_, kArenaBytes);
  if (shape.shared_bytes > 0) {
    add_region(nullptr, shape.shared_bytes, kDynamicAlignment, "dynamic shared memory");
  }
}

Block::~Block() { allow(arena_, kArenaBytes); }

Thread& Block::self() { return gang_.running(); }

void Block::end(Thread& thread) {
  thread.ended = true;
  living_[static_cast<size_t>(thread.index / 32)] &= ~(1U << (thread.index % 32));
}

void Block::wait(const char* reason, Site site) { gang_.wait(reason, site); }

void Block::wake(int index) { gang_.wake(threads_[static_cast<size_t>(index)]); }

void Block::start_async(std::function<void()> operation) {
  gang_.start_async(*this, std::move(operation));
}

RaceDetector* Block::race() { return gang_.race(); }

void Block::warp_collective(uint32_t mask,
                            const char* name,
                            void* operand,
                            Complete complete,
                            bool orders_memory,
                            Site site) {
  const Thread& thread = self();
  const int warp = thread.index / 32;
  const int lane = thread.index % 32;
  const Instruction here{name, site};
  if ((mask >> lane & 1U) == 0) fail(here + ": a lane outside of its own mask " + hex(mask));
  if (const uint32_t gone = mask & ~living_[static_cast<size_t>(warp)]; gone != 0) {
    fail(here + ": mask " + hex(mask) + " names lane " + std::to_string(lowest_lane(gone)) +
         ", which has left the kernel or never was");
  }
  std::vector<WarpMeeting*>& meetings = meetings_[static_cast<size_t>(warp)];
  WarpMeeting own{.mask = mask, .arrived = 0, .name = name, .site = site, .operands = {}};
  WarpMeeting* meeting = nullptr;
  for (WarpMeeting* const open : meetings) {
    // Lanes may have an exchange among themselves first while others wait for them; masks that
    // never agree end as a deadlock.
    if (open->mask != mask) continue;
    const bool same_name = open->name == name || std::strcmp(open->name, name) == 0;
    if (!same_name || open->site.line != site.line) {
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
  int lanes[32];
  size_t count = 0;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int index = warp * 32 + lowest_lane(left);
    lanes[count++] = index;
    if (index != thread.index) wake(index);
  }
  if (orders_memory && race() != nullptr) race()->meet(rank_, {lanes, count});
}

void Block::barrier(int id, int count, const char* name, Site site) {
  const Instruction here{name, site};
  if (count == 0) count = num_threads();
  if (id < 0 || id >= 16 || count % 32 != 0 || count > num_threads()) {
    // A last warp that is not full counts as full in __syncthreads.
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
  // Threads may come to a named barrier from two places (producer and consumer), not to id 0.
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
  if (race() != nullptr) race()->meet(rank_, barrier.waiting);
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
  int64_t declared = key == nullptr ? 0 : bytes;
  for (const SharedRegion& region : regions_) {
    if (region.key != nullptr) declared += region.bytes;
  }
  // The dynamic part is behind what the kernel declares.
  const int64_t total =
      shared_bytes_ > 0 ? align_up(declared, kDynamicAlignment) + shared_bytes_ : declared;
  if (declared > kDeclaredLimit) {
    fail(std::string(name) + ": a kernel declares " + std::to_string(declared) +
         " bytes of shared memory, more than 48 KB");
  }
  if (total > shared_limit()) {
    fail(std::string(name) + ": " + std::to_string(total) + " bytes of shared memory in a block");
  }
  arena_used_ = begin + bytes + kRedZone;
  allow(arena_ + begin, bytes);
  std::memset(arena_ + begin, 0xFF, static_cast<size_t>(bytes));  // NaN, and an unlikely index
  if (race() != nullptr) race()->open(arena_ + begin, bytes);
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
         std::to_string(shared_bytes_) + " at the launch");
  }
  return arena_ + regions_[0].begin;
}

int64_t Block::shared_offset(const void* p, int64_t bytes, const Instruction& who) {
  const int64_t offset = static_cast<const std::byte*>(p) - arena_;
  for (const SharedRegion& region : regions_) {
    if (offset >= region.begin && offset + bytes <= region.begin + region.bytes) return offset;
  }
  fail(who + ": " + std::to_string(bytes) + " bytes that are not in shared memory");
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
  const int64_t offset = block.shared_offset(p, sizeof(T), {"shared_add"});
  if (offset % static_cast<int64_t>(sizeof(T)) != 0) simt::fail("shared_add: not aligned");
  if (block.race() != nullptr) block.race()->atomic(block.self().agent, p, sizeof(T), pc);
  const T before = *p;
  *p = before + value;
  return before;
}

}  // namespace

uint32_t shared_add(uint32_t* p, uint32_t value) {
  return add(p, value, __builtin_return_address(0));
}

unsigned long long shared_add(unsigned long long* p, unsigned long long value) {
  return add(p, value, __builtin_return_address(0));
}

bool arrive_last(uint32_t* counter, uint32_t arrivals) {
  const void* const pc = __builtin_return_address(0);
  simt::Block& block = simt::current_block();
  if (block.is_own(reinterpret_cast<const std::byte*>(counter))) {
    simt::fail("arrive_last: not in global memory");
  }
  simt::check_reach(counter, sizeof(*counter), {"a kernel arrives at"}, pc);
  simt::check_overlap(counter, sizeof(*counter), true, pc);
  if (block.race() != nullptr) block.race()->arrive(block.self().agent, counter);
  const uint32_t before = *counter;
  if (before >= arrivals) simt::fail("arrive_last: more arrivals than the last, or not 0 at first");
  *counter = (before + 1) % arrivals;
  return *counter == 0;
}

}  // namespace sluice::gpu
