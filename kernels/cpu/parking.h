// SPDX-License-Identifier: Apache-2.0
// How the threads of a pool wait for each other: who reads and writes which word in which order, so
// that no thread parks after the last wake. Templates, because a test runs them with words of its
// own in every interleaving (tests/kernels/parking_test.cpp). All operations without an order are
// sequentially consistent: each side writes its own word before it reads the other's.
//
// `Futex` has wait(word, expected), which returns at once if the word differs, and else after a
// wake or for no reason, and wake_all(word).
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::kernels::cpu {

// The start of jobs: worker 0 opens the gate once for each, and closes it for good.
template <typename Word, typename Flag, typename Futex>
struct StartGate {
  Word& epoch;       // of the latest job
  Word& num_parked;  // workers that wait in the kernel, or are about to
  Flag& is_closed;

  // Worker 0, after it has written the job of epoch `next`.
  void open(uint32_t next) {
    epoch.store(next);
    if (num_parked.load() > 0) Futex::wake_all(epoch);
  }

  void close() {
    is_closed.store(true);
    epoch.fetch_add(1);
    Futex::wake_all(epoch);
  }

  // Other workers: waits for an epoch other than `seen`, which then becomes that one. `spin`: calls
  // its argument until that returns true, or it has waited enough; returns the latest result.
  // False: the gate is closed.
  template <typename Spin>
  bool pass(uint32_t& seen, const Spin& spin) {
    const auto changed = [&] { return epoch.load(std::memory_order_acquire) != seen; };
    if (!changed() && !spin(changed)) {
      num_parked.fetch_add(1);
      while (epoch.load() == seen) Futex::wait(epoch, seen);
      num_parked.fetch_sub(1);
    }
    // close() writes the flag and then the epoch, so they are read in the other order: a worker
    // that takes the last epoch as seen finds the flag set.
    seen = epoch.load();
    return !is_closed.load();
  }
};

// The end of a job: worker 0 waits until all its units are reported.
template <typename Word, typename Futex>
struct FinishGate {
  Word& unfinished;     // units
  Word& caller_parked;  // 1 while worker 0 waits in the kernel, or is about to

  // Any worker has run `units` of them.
  void report(uint32_t units) {
    if (unfinished.fetch_sub(units) == units && caller_parked.load() != 0) {
      Futex::wake_all(unfinished);
    }
  }

  template <typename Spin>
  void wait(const Spin& spin) {
    const auto done = [&] { return unfinished.load(std::memory_order_acquire) == 0; };
    if (done() || spin(done)) return;
    caller_parked.store(1);
    for (uint32_t left = unfinished.load(); left != 0; left = unfinished.load()) {
      Futex::wait(unfinished, left);
    }
    caller_parked.store(0);
  }
};

}  // namespace sluice::kernels::cpu
