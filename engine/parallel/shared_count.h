// SPDX-License-Identifier: Apache-2.0
// A count in memory that processes share, on which another process may sleep.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <string>

#include "engine/parallel/rank_group.h"

namespace sluice {

struct SharedCount {
  std::atomic<uint32_t> number;    // wraps; futex
  std::atomic<uint32_t> sleepers;  // ranks that sleep on it, or have died doing so

  // Only its owner changes it.
  void set(uint32_t value) {
    number.store(value, std::memory_order_seq_cst);
    // Either this rank sees the sleeper, or that sees the number.
    if (sleepers.load(std::memory_order_seq_cst) == 0) return;
    syscall(SYS_futex, &number, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);  // between processes
  }

  [[nodiscard]] bool has_reached(uint32_t value) const {
    return static_cast<int32_t>(number.load(std::memory_order_acquire) - value) >= 0;
  }

  // Waits until rank `owner` of the group has set this value or a later one. False: the group has
  // failed or ended.
  bool await(uint32_t value, RankGroup& group, int32_t owner, std::chrono::seconds within) {
    using Clock = std::chrono::steady_clock;
    // A part usually comes within the time that sleeping would take.
    constexpr auto kSpin = std::chrono::microseconds(50);
    // How soon a sleeper sees that the group has failed or ended.
    constexpr timespec kNap = {.tv_sec = 0, .tv_nsec = 20'000'000};
    const auto begun = Clock::now();
    while (!has_reached(value) && Clock::now() - begun < kSpin) pause();
    while (!has_reached(value)) {
      if (group.is_over()) return false;
      if (Clock::now() - begun > within) {
        group.fail("rank " + std::to_string(owner) + ": no part of a result within " +
                   std::to_string(within.count()) + " s");
        return false;
      }
      sleepers.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t seen = number.load(std::memory_order_seq_cst);
      if (static_cast<int32_t>(seen - value) < 0) {
        syscall(SYS_futex, &number, FUTEX_WAIT, seen, &kNap, nullptr, 0);
      }
      sleepers.fetch_sub(1, std::memory_order_seq_cst);
    }
    return true;
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace sluice
