// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/core/status.h"
#include "engine/core/thread_priority.h"
#include "engine/core/types.h"
#include "kernels/cpu/parking.h"

namespace sluice::kernels::cpu {
namespace {

constexpr auto kSpin = std::chrono::microseconds(20);
constexpr uint64_t kUnitsMask = 0xFFFFFFFFU;
constexpr int64_t kMaxUnits = 0xFFFF;  // ends of parts have 16 bits

struct Futex {
  static void wait(std::atomic<uint32_t>& word, uint32_t expected) {
    static_assert(sizeof(word) == sizeof(uint32_t));
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
  }

  static void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }
};

using Start = StartGate<std::atomic<uint32_t>, std::atomic<bool>, Futex>;
using Finish = FinishGate<std::atomic<uint32_t>, Futex>;

void cpu_pause() { __builtin_ia32_pause(); }

// Returns true as soon as done() is, false once kSpin has passed.
constexpr auto kSpinUntil = [](const auto& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      cpu_pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
};

// Ends those that have started.
void stop(Start start, std::vector<std::thread>& threads) {
  start.close();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

ThreadPool::ThreadPool(int32_t num_threads, Placement placement)
    : num_threads_(num_threads), placement_(std::move(placement)) {
  CHECK_GE(num_threads, 1);
  CHECK_LE(num_threads, kMaxThreads);
  parts_ = std::make_unique<Part[]>(static_cast<size_t>(num_threads));
  threads_.reserve(static_cast<size_t>(num_threads - 1));
  try {
    for (int32_t worker = 1; worker < num_threads; ++worker) {
      threads_.emplace_back([this, worker] { worker_main(worker); });
    }
  } catch (...) {
    stop(Start{epoch_, num_parked_, stop_}, threads_);
    throw;
  }
}

// Binding is best effort, here and for workers: the bits are the same wherever a thread runs.
void ThreadPool::enter() const { bind_thread(placement_.cpus_of(0)); }

ThreadPool::~ThreadPool() { stop(Start{epoch_, num_parked_, stop_}, threads_); }

void ThreadPool::run(int64_t num_tiles, Claims claims, TileFn fn, void* context) {
  if (num_tiles <= 0) return;
  DCHECK(num_tiles <= INT32_MAX && claims.chunk >= 1 && claims.shares >= 0);
  if (threads_.empty() || num_tiles <= claims.chunk) {
    fn(context, 0, num_tiles, 0);
    return;
  }
  const int64_t unit = std::max(claims.chunk, ceil_div(num_tiles, kMaxUnits));
  const int64_t num_units = ceil_div(num_tiles, unit);
  fn_.store(fn, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  num_tiles_.store(num_tiles, std::memory_order_relaxed);
  unit_.store(unit, std::memory_order_relaxed);
  shares_.store(static_cast<uint32_t>(claims.shares), std::memory_order_relaxed);
  unfinished_.store(static_cast<uint32_t>(num_units), std::memory_order_relaxed);
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  const uint64_t state = uint64_t{epoch} << 32 | static_cast<uint64_t>(num_units);
  state_.store(state, std::memory_order_release);
  Start{epoch_, num_parked_, stop_}.open(epoch);
  work(state, 0);
  Finish{unfinished_, caller_parked_}.wait(kSpinUntil);
}

// Runs the worker's own part first, then what is left of other parts. Units of a part are reported
// together: the line of unfinished_ moves between cores with each report.
void ThreadPool::work(uint64_t state, int32_t worker) {
  for (int32_t i = 0; i < num_threads_; ++i) {
    const int32_t after = worker + i - num_threads_;
    const int32_t owner = after < 0 ? worker + i : after;
    uint32_t done = 0;
    while (const uint32_t units = claim_and_run(state, owner, worker)) done += units;
    if (done != 0) Finish{unfinished_, caller_parked_}.report(done);
  }
}

// Returns how many units it ran, still unreported; 0: the owner's part has no unclaimed units of
// the job of `state`. A claim succeeds only while it has some, hence before worker 0 may replace
// the job: what was read of the job between loading `state` and the claim belongs to it. A part
// that no worker has claimed from yet names an older epoch and is whole; state_ shows that the
// newer epoch is `state`'s and not a later one.
uint32_t ThreadPool::claim_and_run(uint64_t state, int32_t owner, int32_t worker) {
  std::atomic<uint64_t>& part = parts_[static_cast<size_t>(owner)].left;
  uint64_t left = part.load(std::memory_order_acquire);
  while (true) {
    int64_t begin = static_cast<int64_t>(left >> 16 & 0xFFFF);
    int64_t end = static_cast<int64_t>(left & 0xFFFF);
    if (left >> 32 != state >> 32) {
      if (state_.load(std::memory_order_acquire) != state) return 0;
      const auto num_units = static_cast<int64_t>(state & kUnitsMask);
      begin = num_units * owner / num_threads_;
      end = num_units * (owner + 1) / num_threads_;
    }
    if (begin == end) return 0;
    const TileFn fn = fn_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const int64_t num_tiles = num_tiles_.load(std::memory_order_relaxed);
    const int64_t unit = unit_.load(std::memory_order_relaxed);
    const uint32_t shares = shares_.load(std::memory_order_relaxed);
    const int64_t take = std::max<int64_t>(shares == 0 ? 0 : (end - begin) / shares, 1);
    const int64_t first = owner == worker ? begin : end - take;
    const int64_t kept = owner == worker ? begin + take : begin;
    const int64_t kept_end = owner == worker ? end : end - take;
    const uint64_t next = state >> 32 << 32 | static_cast<uint64_t>(kept << 16 | kept_end);
    if (!part.compare_exchange_weak(
            left, next, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    fn(context, first * unit, std::min((first + take) * unit, num_tiles), worker);
    return static_cast<uint32_t>(take);
  }
}

void ThreadPool::worker_main(int32_t worker) {
  lower_own_priority();
  bind_thread(placement_.cpus_of(worker));
  for (uint32_t seen = 0; Start{epoch_, num_parked_, stop_}.pass(seen, kSpinUntil);) {
    work(state_.load(std::memory_order_acquire), worker);
  }
}

}  // namespace sluice::kernels::cpu
