// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simt/peers.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "tests/support/simt/block.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/simt/peers_simt.h"
#include "tests/support/simt/reach.h"
#include "tests/support/simt/sched.h"

namespace sluice::simt {

PeerShadow& peer_shadow() {
  static PeerShadow shadow;
  return shadow;
}

PeerMemory::PeerMemory(const void* begin, int64_t bytes)
    : begin_(static_cast<const std::byte*>(begin)) {
  PeerShadow& shadow = peer_shadow();
  const std::scoped_lock lock(shadow.mutex_);
  shadow.ranges_[begin_] = bytes;
  shadow.has_ranges_ = true;
}

PeerMemory::~PeerMemory() {
  PeerShadow& shadow = peer_shadow();
  const std::scoped_lock lock(shadow.mutex_);
  shadow.ranges_.erase(begin_);
  shadow.has_ranges_ = !shadow.ranges_.empty();
  if (shadow.has_ranges_) return;
  shadow.words_.clear();
  shadow.told_.clear();
}

PeerShadow::Device& PeerShadow::own() {
  static std::atomic<int> num_devices = 0;
  thread_local Device device{.number = num_devices++, .launch = 0, .seen = {}};
  return device;
}

void PeerShadow::begin_launch() { ++own().launch; }

void PeerShadow::tell(const uint32_t* word, uint32_t number, const Clock& clock) {
  const Device& device = own();
  const std::scoped_lock lock(mutex_);
  told_[word].push_back({number, device.number, device.launch, clock});
}

void PeerShadow::see(const uint32_t* word, uint32_t number, int agent, uint32_t time) {
  Device& device = own();
  const std::scoped_lock lock(mutex_);
  for (const Told& told : told_[word]) {
    if (told.number == number) device.seen.push_back({device.launch, agent, time, told});
  }
}

bool PeerShadow::knows(const Access& access, const Clock& clock) {
  const Device& device = own();
  if (access.device < 0 || access.device == device.number) return true;
  return std::any_of(device.seen.begin(), device.seen.end(), [&](const Seen& seen) {
    if (seen.told.device != access.device) return false;
    const bool is_known =
        seen.launch < device.launch || clock.seen[static_cast<size_t>(seen.agent)] >= seen.time;
    return is_known && (seen.told.launch > access.launch ||
                        (seen.told.launch == access.launch &&
                         seen.told.clock.seen[static_cast<size_t>(access.agent)] >= access.time));
  });
}

const char* PeerShadow::access(
    const void* p, int64_t bytes, bool is_write, int agent, const Clock& clock) {
  if (!has_ranges_) return nullptr;
  const auto* const begin = static_cast<const std::byte*>(p);
  const std::scoped_lock lock(mutex_);
  const auto after = ranges_.upper_bound(begin);
  if (after == ranges_.begin()) return nullptr;
  if (const auto range = std::prev(after); begin >= range->first + range->second) return nullptr;
  if (told_.contains(p)) return "an access beside tell_peer";
  const Device& device = own();
  const Access here{device.number, device.launch, agent, clock.seen[static_cast<size_t>(agent)]};
  const char* race = nullptr;
  for (int64_t at = 0; at < bytes; at += 4) {
    Word& word = words_[reinterpret_cast<uintptr_t>(begin + at) / 4];
    if (!knows(word.write, clock)) {
      race = is_write ? "writes of two devices" : "a read of what another device writes";
    }
    if (is_write) {
      const bool all_known = std::all_of(word.reads.begin(),
                                         word.reads.end(),
                                         [&](const Access& read) { return knows(read, clock); });
      if (!all_known) race = "a write of what another device reads";
      word = {here, {}};
      continue;
    }
    std::erase_if(word.reads, [&](const Access& read) { return read.device == here.device; });
    word.reads.push_back(here);
  }
  return race;
}

}  // namespace sluice::simt

namespace sluice::gpu::ptx {

void tell_peer(uint32_t* word, uint32_t number) {
  const void* const pc = __builtin_return_address(0);
  simt::Block& block = simt::current_block();
  simt::check_reach(word, sizeof(*word), {"a kernel tells a peer"}, pc);
  simt::check_overlap(word, sizeof(*word), true, pc);
  if (block.race() != nullptr) block.race()->tell(block.self().agent, word, number);
  std::atomic_ref(*word).store(number, std::memory_order_release);
}

bool wait_for_peer(
    const uint32_t* word, uint32_t number, uint32_t* stop, int64_t limit_ns, simt::Site site) {
  const void* const pc = __builtin_return_address(0);
  simt::Block& block = simt::current_block();
  simt::check_reach(word, sizeof(*word), {"a kernel waits for a peer"}, pc);
  simt::check_overlap(word, sizeof(*word), false, pc);
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(limit_ns);
  const std::atomic_ref told(*const_cast<uint32_t*>(word));
  const std::atomic_ref stopped(*stop);
  for (;;) {
    const uint32_t found = told.load(std::memory_order_acquire);
    if (static_cast<int32_t>(found - number) >= 0) {
      if (block.race() != nullptr) block.race()->see(block.self().agent, word, found);
      return true;
    }
    if (stopped.load() != 0) return false;
    if (std::chrono::steady_clock::now() > until) {
      stopped = 1;
      return false;
    }
    block.gang().poll("wait_for_peer", site);
  }
}

}  // namespace sluice::gpu::ptx
