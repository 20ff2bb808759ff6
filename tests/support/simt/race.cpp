// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simt/race.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/support/simt/block.h"
#include "tests/support/simt/reach.h"

namespace sluice::simt {

void Clock::join(const Clock& other) {
  if (seen.size() < other.seen.size()) {  // from before there were agents for cp.async
    seen.resize(other.seen.size());
    visible.resize(other.seen.size());
  }
  for (size_t i = 0; i < other.seen.size(); ++i) {
    seen[i] = std::max(seen[i], other.seen[i]);
    visible[i] = std::max(visible[i], other.visible[i]);
  }
}

GlobalShadow::Byte& GlobalShadow::at(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (last_ == nullptr || address / kPage != last_page_) {
    last_page_ = address / kPage;
    std::unique_ptr<Byte[]>& page = pages_[last_page_];
    if (page == nullptr) page = std::make_unique<Byte[]>(kPage);
    last_ = page.get();
  }
  return last_[address % kPage];
}

RaceDetector::RaceDetector(
    Block& block, int num_threads, std::byte* arena, int64_t arena_bytes, GlobalShadow& global)
    : block_(block),
      num_threads_(num_threads),
      num_warps_((num_threads + 31) / 32),
      num_agents_(num_threads + num_warps_ + kMaxMbarriers),
      arena_(arena),
      arena_bytes_(arena_bytes),
      global_(global),
      clocks_(static_cast<size_t>(num_agents_), empty_clock()) {
  for (size_t agent = 0; agent < clocks_.size(); ++agent) clocks_[agent].seen[agent] = 1;
}

Clock RaceDetector::empty_clock() const {
  const auto size = static_cast<size_t>(num_agents_);
  return {.seen = std::vector<uint32_t>(size), .visible = std::vector<uint32_t>(size)};
}

int RaceDetector::copy_unit(int thread) {
  if (!has_copies_) {
    has_copies_ = true;
    num_agents_ += num_threads_;
    const auto size = static_cast<size_t>(num_agents_);
    for (Clock& clock : clocks_) {
      clock.seen.resize(size);
      clock.visible.resize(size);
    }
    clocks_.resize(size, empty_clock());
    for (std::vector<uint32_t>& set : read_sets_) set.resize(size);
    for (std::vector<uint32_t>& set : atomic_sets_) set.resize(size);
  }
  return num_threads_ + num_warps_ + kMaxMbarriers + thread;
}

void RaceDetector::meet(const std::vector<int>& threads) {
  Clock all = empty_clock();
  for (const int thread : threads) all.join(clocks_[static_cast<size_t>(thread)]);
  for (const int thread : threads) {
    const auto at = static_cast<size_t>(thread);
    clocks_[at] = all;
    ++clocks_[at].seen[at];
  }
}

void RaceDetector::release(int agent, Clock& clock) {
  const auto at = static_cast<size_t>(agent);
  clock.join(clocks_[at]);
  ++clocks_[at].seen[at];
}

void RaceDetector::acquire(int agent, const Clock& clock) {
  clocks_[static_cast<size_t>(agent)].join(clock);
}

void RaceDetector::add_to(Clock& clock, int agent) const {
  clock.join(clocks_[static_cast<size_t>(agent)]);
}

uint32_t RaceDetector::now(int agent) const {
  return clocks_[static_cast<size_t>(agent)].seen[static_cast<size_t>(agent)];
}

void RaceDetector::learn(int agent, int other, uint32_t time) {
  uint32_t& seen = clocks_[static_cast<size_t>(agent)].seen[static_cast<size_t>(other)];
  seen = std::max(seen, time);
}

void RaceDetector::proxy_fence(int agent) {
  const auto at = static_cast<size_t>(agent);
  clocks_[at].visible[at] = clocks_[at].seen[at];
  ++clocks_[at].seen[at];
}

void RaceDetector::begin(int agent, const Clock& clock) {
  const auto at = static_cast<size_t>(agent);
  const uint32_t now = clocks_[at].seen[at] + 1;
  clocks_[at] = empty_clock();
  clocks_[at].join(clock);
  clocks_[at].seen[at] = now;
}

bool RaceDetector::anyone_saw_all_of(int agent) const {
  const auto at = static_cast<size_t>(agent);
  const uint32_t released = clocks_[at].seen[at] - 1;  // 0 for an agent that did nothing
  return std::any_of(clocks_.begin(), clocks_.begin() + num_threads_, [&](const Clock& clock) {
    return clock.seen[at] >= released;
  });
}

void RaceDetector::open(int64_t offset, int64_t bytes) {
  const auto end = static_cast<size_t>(offset + bytes);
  if (cells_.size() < end) cells_.resize(end);
  for (auto at = static_cast<size_t>(offset); at < end; ++at) cells_[at].open = true;
}

std::string RaceDetector::name(int agent) const {
  if (agent < num_threads_) return "thread " + std::to_string(agent);
  agent -= num_threads_;
  if (agent < num_warps_) return "wgmma of warp " + std::to_string(agent);
  agent -= num_warps_;
  if (agent < kMaxMbarriers) return "copy to mbarrier " + std::to_string(agent);
  return "cp.async of thread " + std::to_string(agent - kMaxMbarriers);
}

void RaceDetector::report(const char* what, int agent, int other, int64_t offset, const void* pc) {
  std::string where;
  Dl_info info;
  if (pc != nullptr && dladdr(pc, &info) != 0) {
    char text[64];
    const auto distance = static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase);
    std::snprintf(text, sizeof(text), " at 0x%tx", distance);
    where = text;
  }
  const std::string place = offset == kGlobal ? "global memory" : block_.place(offset);
  if (!told_.insert(what + place.substr(0, place.find(" + ")) + where).second) return;
  add_report(std::string("race: ") + what + ": " + name(agent) +
             (other >= 0 ? " and " + name(other) : "") + ", " + place + where);
}

void RaceDetector::check_reads(const Cell& cell, int agent, int64_t offset, const void* pc) {
  const std::vector<uint32_t>& seen = clocks_[static_cast<size_t>(agent)].seen;
  if (cell.read_time == 0) return;
  if (cell.reader != kManyReaders) {
    if (cell.read_time > seen[static_cast<size_t>(cell.reader)] && cell.reader != agent) {
      report("a write that a read may overtake", agent, cell.reader, offset, pc);
    }
    return;
  }
  const std::vector<uint32_t>& reads = read_sets_[static_cast<size_t>(cell.read_set)];
  for (int reader = 0; reader < num_agents_; ++reader) {
    const auto at = static_cast<size_t>(reader);
    if (reads[at] > seen[at] && reader != agent) {
      report("a write that a read may overtake", agent, reader, offset, pc);
      return;
    }
  }
}

void RaceDetector::check_atomics(const Cell& cell, int agent, int64_t offset, const void* pc) {
  if (!cell.atomic) return;
  const std::vector<uint32_t>& seen = clocks_[static_cast<size_t>(agent)].seen;
  const std::vector<uint32_t>& atomics = atomic_sets_[static_cast<size_t>(cell.atomic_set)];
  for (int other = 0; other < num_agents_; ++other) {
    const auto at = static_cast<size_t>(other);
    if (atomics[at] <= seen[at] || other == agent) continue;
    report("an access beside an atomic", agent, other, offset, pc);
    return;
  }
}

void RaceDetector::note_read(Cell& cell, int agent) {
  const std::vector<uint32_t>& seen = clocks_[static_cast<size_t>(agent)].seen;
  const uint32_t now = seen[static_cast<size_t>(agent)];
  const auto reader = static_cast<int16_t>(agent);
  if (cell.read_time == 0 ||
      (cell.reader != kManyReaders &&
       (cell.reader == reader || cell.read_time <= seen[static_cast<size_t>(cell.reader)]))) {
    cell.reader = reader;
    cell.read_time = now;
    return;
  }
  if (cell.reader != kManyReaders) {
    if (cell.read_set < 0) {
      cell.read_set = static_cast<int32_t>(read_sets_.size());
      read_sets_.emplace_back(static_cast<size_t>(num_agents_));
    }
    std::vector<uint32_t>& reads = read_sets_[static_cast<size_t>(cell.read_set)];
    std::fill(reads.begin(), reads.end(), 0U);
    reads[static_cast<size_t>(cell.reader)] = cell.read_time;
    cell.reader = kManyReaders;
  }
  read_sets_[static_cast<size_t>(cell.read_set)][static_cast<size_t>(agent)] = now;
}

void RaceDetector::read_cell(Cell& cell, int agent, Proxy proxy, int64_t offset, const void* pc) {
  const Clock& clock = clocks_[static_cast<size_t>(agent)];
  const auto writer = static_cast<size_t>(cell.writer);
  if (cell.write_time == 0) {
    if (offset != kGlobal) report("a read of what nobody wrote", agent, -1, offset, pc);
  } else if (cell.writer != agent && cell.write_time > clock.seen[writer]) {
    report("a read of what is being written", agent, cell.writer, offset, pc);
  } else if (proxy == Proxy::kAsync && !cell.async_write &&
             cell.write_time > clock.visible[writer]) {
    report("an asynchronous read without fence_proxy_async by the writer",
           agent,
           cell.writer,
           offset,
           pc);
  }
  check_atomics(cell, agent, offset, pc);
  note_read(cell, agent);
}

void RaceDetector::write_cell(Cell& cell, int agent, Proxy proxy, int64_t offset, const void* pc) {
  const Clock& clock = clocks_[static_cast<size_t>(agent)];
  const auto writer = static_cast<size_t>(cell.writer);
  if (cell.write_time != 0 && cell.writer != agent && cell.write_time > clock.seen[writer]) {
    report("two writes", agent, cell.writer, offset, pc);
  } else if (proxy == Proxy::kAsync && cell.write_time != 0 && !cell.async_write &&
             cell.write_time > clock.visible[writer]) {
    report("an asynchronous write without fence_proxy_async by the earlier writer",
           agent,
           cell.writer,
           offset,
           pc);
  }
  check_reads(cell, agent, offset, pc);
  check_atomics(cell, agent, offset, pc);
  cell.atomic = false;
  cell.writer = static_cast<int16_t>(agent);
  cell.write_time = clock.seen[static_cast<size_t>(agent)];
  cell.async_write = proxy == Proxy::kAsync;
  cell.read_time = 0;
  cell.reader = 0;
}

bool RaceDetector::check_open(int64_t offset, bool is_write, int agent, const void* pc) {
  if (offset < static_cast<int64_t>(cells_.size()) && cells_[static_cast<size_t>(offset)].open) {
    return true;
  }
  report(is_write ? "a write out of bounds" : "a read out of bounds", agent, -1, offset, pc);
  return false;
}

void RaceDetector::read(int agent, Proxy proxy, const void* p, int64_t bytes, const void* pc) {
  const int64_t begin = static_cast<const std::byte*>(p) - arena_;
  for (int64_t at = begin; at < begin + bytes && check_open(at, false, agent, pc); ++at) {
    read_cell(cells_[static_cast<size_t>(at)], agent, proxy, at, pc);
  }
}

void RaceDetector::write(int agent, Proxy proxy, const void* p, int64_t bytes, const void* pc) {
  const int64_t begin = static_cast<const std::byte*>(p) - arena_;
  for (int64_t at = begin; at < begin + bytes && check_open(at, true, agent, pc); ++at) {
    write_cell(cells_[static_cast<size_t>(at)], agent, proxy, at, pc);
  }
}

void RaceDetector::atomic(int agent, const void* p, int64_t bytes, const void* pc) {
  const std::vector<uint32_t>& seen = clocks_[static_cast<size_t>(agent)].seen;
  const int64_t begin = static_cast<const std::byte*>(p) - arena_;
  for (int64_t at = begin; at < begin + bytes && check_open(at, true, agent, pc); ++at) {
    Cell& cell = cells_[static_cast<size_t>(at)];
    if (cell.write_time == 0) {
      report("an atomic on what nobody wrote", agent, -1, at, pc);
    } else if (cell.writer != agent && cell.write_time > seen[static_cast<size_t>(cell.writer)]) {
      report("an atomic on what is being written", agent, cell.writer, at, pc);
    }
    check_reads(cell, agent, at, pc);
    if (cell.atomic_set < 0) {
      cell.atomic_set = static_cast<int32_t>(atomic_sets_.size());
      atomic_sets_.emplace_back(static_cast<size_t>(num_agents_));
    }
    std::vector<uint32_t>& atomics = atomic_sets_[static_cast<size_t>(cell.atomic_set)];
    if (!cell.atomic) std::fill(atomics.begin(), atomics.end(), 0U);
    cell.atomic = true;
    atomics[static_cast<size_t>(agent)] = seen[static_cast<size_t>(agent)];
  }
}

void RaceDetector::global_access(std::byte* p, int64_t bytes, bool is_write, const void* pc) {
  const Thread& thread = block_.self();
  const auto block =
      static_cast<int32_t>(thread.block_idx.y * thread.grid_dim.x + thread.block_idx.x);
  for (std::byte* at = p; at < p + bytes; ++at) {
    GlobalShadow::Byte& byte = global_.at(at);
    const bool written_elsewhere = byte.writer >= 0 && byte.writer != block;
    const bool read_elsewhere = byte.many_readers || (byte.reader >= 0 && byte.reader != block);
    if (written_elsewhere) {
      report(is_write ? "writes of two blocks" : "a read of what another block writes",
             thread.index,
             -1,
             kGlobal,
             pc);
    }
    if (is_write && read_elsewhere) {
      report("a write of what another block reads", thread.index, -1, kGlobal, pc);
    }
    if (byte.block != block) byte.cell = {};
    byte.block = block;
    if (is_write) {
      byte.writer = block;
      write_cell(byte.cell, thread.index, Proxy::kGeneric, kGlobal, pc);
    } else {
      byte.many_readers = byte.many_readers || (byte.reader >= 0 && byte.reader != block);
      byte.reader = block;
      read_cell(byte.cell, thread.index, Proxy::kGeneric, kGlobal, pc);
    }
  }
}

void RaceDetector::on_access(void* p, int64_t bytes, bool is_write, const void* pc) {
  auto* const at = static_cast<std::byte*>(p);
  if (block_.on_stack(at)) return;
  if (at < arena_ || at >= arena_ + arena_bytes_) return global_access(at, bytes, is_write, pc);
  const int agent = block_.self().index;
  if (is_write) {
    write(agent, Proxy::kGeneric, p, bytes, pc);
  } else {
    read(agent, Proxy::kGeneric, p, bytes, pc);
  }
}

}  // namespace sluice::simt

namespace {

inline void access(void* p, int64_t bytes, bool is_write, const void* pc) {
  using sluice::simt::current_block;
  if (sluice::simt::current_thread == nullptr) return;
  if (sluice::simt::reach != nullptr && !current_block().is_own(static_cast<std::byte*>(p))) {
    sluice::simt::check_reach(p, bytes, is_write ? "a kernel writes" : "a kernel reads", pc);
  }
  if (current_block().race() == nullptr) return;
  current_block().race()->on_access(p, bytes, is_write, pc);
}

}  // namespace

// What -fsanitize=thread calls.
extern "C" {
void __tsan_init() {}

void __tsan_func_entry(void*) {}

void __tsan_func_exit() {}

void __tsan_vptr_update(void**, void*) {}

void __tsan_vptr_read(void**) {}

#define SIMT_ACCESS(n)                                                                         \
  void __tsan_read##n(void* p) { access(p, n, false, __builtin_return_address(0)); }           \
  void __tsan_write##n(void* p) { access(p, n, true, __builtin_return_address(0)); }           \
  void __tsan_unaligned_read##n(void* p) { access(p, n, false, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##n(void* p) { access(p, n, true, __builtin_return_address(0)); }
SIMT_ACCESS(1)
SIMT_ACCESS(2)
SIMT_ACCESS(4)
SIMT_ACCESS(8)
SIMT_ACCESS(16)
#undef SIMT_ACCESS

// Clang's; GCC inlines what kernels copy.
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  void* const pc = __builtin_return_address(0);
  access(const_cast<void*>(from), static_cast<int64_t>(bytes), false, pc);
  access(to, static_cast<int64_t>(bytes), true, pc);
  return std::memcpy(to, from, bytes);
}

void* __tsan_memset(void* to, int value, unsigned long bytes) {
  access(to, static_cast<int64_t>(bytes), true, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}

void __tsan_read_range(void* p, unsigned long bytes) {
  access(p, static_cast<int64_t>(bytes), false, __builtin_return_address(0));
}

void __tsan_write_range(void* p, unsigned long bytes) {
  access(p, static_cast<int64_t>(bytes), true, __builtin_return_address(0));
}
}
