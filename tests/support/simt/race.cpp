// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simt/race.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/support/simt/block.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/simt/peers.h"
#include "tests/support/simt/reach.h"
#include "tests/support/simt/sched.h"

namespace sluice::simt {

void Clock::join(const Clock& other) {
  if (seen.size() < other.seen.size()) {  // it predates the agents of cp.async
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
    Gang& gang, int num_blocks, int num_threads, std::byte* arenas, GlobalShadow& global)
    : gang_(gang),
      num_blocks_(num_blocks),
      block_threads_(num_threads),
      block_warps_((num_threads + 31) / 32),
      first_warp_(num_blocks * block_threads_),
      first_mbarrier_(first_warp_ + num_blocks * block_warps_),
      first_copy_(first_mbarrier_ + num_blocks * kMaxMbarriers),
      num_agents_(first_copy_),
      arenas_(arenas),
      global_(global),
      clocks_(static_cast<size_t>(num_agents_), empty_clock()),
      cells_(static_cast<size_t>(num_blocks)) {
  for (size_t agent = 0; agent < clocks_.size(); ++agent) clocks_[agent].seen[agent] = 1;
}

Clock RaceDetector::empty_clock() const {
  const auto size = static_cast<size_t>(num_agents_);
  return {.seen = std::vector<uint32_t>(size), .visible = std::vector<uint32_t>(size)};
}

int RaceDetector::copy_unit(int rank, int thread) {
  if (num_agents_ == first_copy_) {
    num_agents_ += num_blocks_ * block_threads_;
    const auto size = static_cast<size_t>(num_agents_);
    for (Clock& clock : clocks_) {
      clock.seen.resize(size);
      clock.visible.resize(size);
    }
    clocks_.resize(size, empty_clock());
    for (std::vector<uint32_t>& set : read_sets_) set.resize(size);
    for (std::vector<uint32_t>& set : atomic_sets_) set.resize(size);
  }
  return first_copy_ + rank * block_threads_ + thread;
}

void RaceDetector::meet(int rank, std::span<const int> threads) {
  Clock all = empty_clock();
  for (const int index : threads) all.join(clocks_[static_cast<size_t>(thread(rank, index))]);
  for (const int index : threads) {
    const auto at = static_cast<size_t>(thread(rank, index));
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
  const uint32_t released = clocks_[at].seen[at] - 1;  // 0 for an agent without events
  return std::any_of(clocks_.begin(), clocks_.begin() + first_warp_, [&](const Clock& clock) {
    return clock.seen[at] >= released;
  });
}

void RaceDetector::open(const std::byte* p, int64_t bytes) {
  const int64_t offset = p - arenas_;
  std::vector<Cell>& cells = cells_[static_cast<size_t>(offset / kArenaBytes)];
  const auto end = static_cast<size_t>(offset % kArenaBytes + bytes);
  if (cells.size() < end) cells.resize(end);
  for (size_t at = end - static_cast<size_t>(bytes); at < end; ++at) cells[at].open = true;
}

std::string RaceDetector::name(int agent) const {
  const auto named = [&](const char* what, int number, int of_a_block) {
    const std::string block = " of block " + std::to_string(number / of_a_block);
    return what + std::to_string(number % of_a_block) + (num_blocks_ > 1 ? block : "");
  };
  if (agent < first_warp_) return named("thread ", agent, block_threads_);
  if (agent < first_mbarrier_) {
    return named("wgmma of warp ", agent - first_warp_, block_warps_);
  }
  if (agent < first_copy_) {
    return named("copy to mbarrier ", agent - first_mbarrier_, kMaxMbarriers);
  }
  return named("cp.async of thread ", agent - first_copy_, block_threads_);
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
  const std::string place = offset == kGlobal ? "global memory" : gang_.place(offset);
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
  // An agent has seen its own reads. Nearly always there is none to report: a loop without an exit.
  const auto count = static_cast<size_t>(num_agents_);
  uint32_t unseen = 0;
  for (size_t at = 0; at < count; ++at) unseen |= reads[at] > seen[at] ? 1U : 0U;
  if (unseen == 0) return;
  size_t reader = 0;
  while (reads[reader] <= seen[reader]) ++reader;
  report("a write that a read may overtake", agent, static_cast<int>(reader), offset, pc);
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

Cell* RaceDetector::open_cell(int64_t offset, bool is_write, int agent, const void* pc) {
  std::vector<Cell>& cells = cells_[static_cast<size_t>(offset / kArenaBytes)];
  const auto at = static_cast<size_t>(offset % kArenaBytes);
  if (at < cells.size() && cells[at].open) return &cells[at];
  report(is_write ? "a write out of bounds" : "a read out of bounds", agent, -1, offset, pc);
  return nullptr;
}

void RaceDetector::read(int agent, Proxy proxy, const void* p, int64_t bytes, const void* pc) {
  const int64_t begin = static_cast<const std::byte*>(p) - arenas_;
  for (int64_t at = begin; at < begin + bytes; ++at) {
    Cell* const cell = open_cell(at, false, agent, pc);
    if (cell == nullptr) return;
    read_cell(*cell, agent, proxy, at, pc);
  }
}

void RaceDetector::write(int agent, Proxy proxy, const void* p, int64_t bytes, const void* pc) {
  const int64_t begin = static_cast<const std::byte*>(p) - arenas_;
  for (int64_t at = begin; at < begin + bytes; ++at) {
    Cell* const cell = open_cell(at, true, agent, pc);
    if (cell == nullptr) return;
    write_cell(*cell, agent, proxy, at, pc);
  }
}

void RaceDetector::atomic(int agent, const void* p, int64_t bytes, const void* pc) {
  const std::vector<uint32_t>& seen = clocks_[static_cast<size_t>(agent)].seen;
  const int64_t begin = static_cast<const std::byte*>(p) - arenas_;
  for (int64_t at = begin; at < begin + bytes; ++at) {
    Cell* const found = open_cell(at, true, agent, pc);
    if (found == nullptr) return;
    Cell& cell = *found;
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

void RaceDetector::device_fence(int agent) {
  const auto at = static_cast<size_t>(agent);
  fenced_[agent] = clocks_[at];
  if (const auto met = met_.find(agent); met != met_.end()) {
    learned_.push_back({agent, now(agent), std::move(met->second)});
    met_.erase(met);
  }
  ++clocks_[at].seen[at];
}

void RaceDetector::arrive(int agent, const void* counter) {
  std::vector<GlobalShadow::Arrival>& before = global_.arrivals(counter);
  std::vector<GlobalShadow::Arrival>& met = met_[agent];
  met.insert(met.end(), before.begin(), before.end());
  const auto fenced = fenced_.find(agent);
  before.push_back({gang_.number(), fenced == fenced_.end() ? Clock{} : fenced->second});
}

void RaceDetector::tell(int agent, const uint32_t* word, uint32_t number) {
  const auto at = static_cast<size_t>(agent);
  peer_shadow().tell(word, number, clocks_[at]);
  ++clocks_[at].seen[at];
}

void RaceDetector::see(int agent, const uint32_t* word, uint32_t number) const {
  peer_shadow().see(word, number, agent, now(agent));
}

bool RaceDetector::knows_write(int agent, const GlobalShadow::Byte& byte) const {
  const auto writer = static_cast<size_t>(byte.agent);
  const std::vector<uint32_t>& seen = clocks_[static_cast<size_t>(agent)].seen;
  return std::any_of(learned_.begin(), learned_.end(), [&](const Learned& learned) {
    if (seen[static_cast<size_t>(learned.agent)] < learned.time) return false;
    return std::any_of(
        learned.arrivals.begin(), learned.arrivals.end(), [&](const GlobalShadow::Arrival& one) {
          return one.gang == byte.writer && one.clock.seen.size() > writer &&
                 one.clock.seen[writer] >= byte.time;
        });
  });
}

void RaceDetector::global_access(std::byte* p, int64_t bytes, bool is_write, const void* pc) {
  const int agent = gang_.running().agent;
  const int32_t gang = gang_.number();
  const Clock& clock = clocks_[static_cast<size_t>(agent)];
  if (const char* const race = peer_shadow().access(p, bytes, is_write, agent, clock)) {
    report(race, agent, -1, kGlobal, pc);
  }
  for (std::byte* at = p; at < p + bytes; ++at) {
    GlobalShadow::Byte& byte = global_.at(at);
    const bool written_elsewhere = byte.writer >= 0 && byte.writer != gang;
    const bool read_elsewhere = byte.many_readers || (byte.reader >= 0 && byte.reader != gang);
    if (global_.is_counter(at)) report("an access beside an arrival", agent, -1, kGlobal, pc);
    if (written_elsewhere && (is_write || !knows_write(agent, byte))) {
      report(is_write ? "writes of two blocks" : "a read of what another block writes",
             agent,
             -1,
             kGlobal,
             pc);
    }
    if (is_write && read_elsewhere) {
      report("a write of what another block reads", agent, -1, kGlobal, pc);
    }
    if (byte.gang != gang) byte.cell = {};
    byte.gang = gang;
    if (is_write) {
      byte.writer = gang;
      byte.agent = static_cast<int16_t>(agent);
      byte.time = now(agent);
      write_cell(byte.cell, agent, Proxy::kGeneric, kGlobal, pc);
    } else {
      byte.many_readers = byte.many_readers || (byte.reader >= 0 && byte.reader != gang);
      byte.reader = gang;
      read_cell(byte.cell, agent, Proxy::kGeneric, kGlobal, pc);
    }
  }
}

void RaceDetector::on_access(void* p, int64_t bytes, bool is_write, const void* pc) {
  auto* const at = static_cast<std::byte*>(p);
  const Thread& thread = gang_.running();
  if (at >= thread.stack && at < thread.stack + kStackBytes) return;
  if (at < arenas_ || at >= arenas_ + num_blocks_ * kArenaBytes) {
    return global_access(at, bytes, is_write, pc);
  }
  if (is_write) {
    write(thread.agent, Proxy::kGeneric, p, bytes, pc);
  } else {
    read(thread.agent, Proxy::kGeneric, p, bytes, pc);
  }
}

}  // namespace sluice::simt

namespace {

inline void access(void* p, int64_t bytes, bool is_write, const void* pc) {
  using sluice::simt::current_block;
  if (sluice::simt::current_thread == nullptr) return;
  sluice::simt::Block& block = current_block();
  sluice::simt::RaceDetector* const race = block.race();
  if (race == nullptr && sluice::simt::reach == nullptr) return;
  if (!block.is_own(static_cast<std::byte*>(p))) {
    sluice::simt::check_reach(p, bytes, {is_write ? "a kernel writes" : "a kernel reads"}, pc);
    sluice::simt::check_overlap(p, bytes, is_write, pc);
  }
  if (race != nullptr) race->on_access(p, bytes, is_write, pc);
}

}  // namespace

// The functions that -fsanitize=thread calls.
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

// Clang calls these; GCC inlines what kernels copy.
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
