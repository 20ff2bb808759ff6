// SPDX-License-Identifier: Apache-2.0
// The compute threads of one engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "engine/core/numa.h"

namespace sluice::kernels::cpu {

inline constexpr int32_t kMaxThreads = 1024;

// A fork-join pool. Worker 0 is the thread that calls parallel_for: one thread at a time, and not
// from inside. Each worker has a part of consecutive tiles and claims its first ones: what it reads
// lies in a row, and calls of the same size give it the same part. A worker with an empty part
// claims the last tiles of other parts, so one whose core is taken away leaves its part to them.
// Nothing is allocated or locked per call. Waiting spins for at most about 20 us, then parks in the
// kernel. Workers other than 0 run 5 nice levels below their creator: I/O threads preempt them.
class ThreadPool {
 public:
  // Runs the tiles [begin, end); `worker` in [0, num_threads) names per-worker scratch.
  using TileFn = void (*)(void* context, int64_t begin, int64_t end, int32_t worker);

  // `num_threads` includes worker 0. Other workers start on the CPUs that the placement gives them.
  explicit ThreadPool(int32_t num_threads, Placement placement = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int32_t num_threads() const { return num_threads_; }

  // Makes the calling thread worker 0 from now on: it takes that worker's CPUs.
  void enter() const;

  // Tiles of a claim: at least `chunk` and, where `shares` is not 0, at least 1 / shares of what is
  // left of the part. Claims are long at first, which suits memory, and short at the end, where
  // long ones would keep other workers waiting. Chunks begin at multiples of `chunk`.
  struct Claims {
    int64_t chunk = 1;
    int64_t shares = 0;
  };

  // Runs every tile of [0, num_tiles) once, and returns then. num_tiles < 2^31.
  void run(int64_t num_tiles, Claims claims, TileFn fn, void* context);

  // Calls fn(begin, end, worker).
  template <typename Fn>
  void parallel_for_chunked(int64_t num_tiles, Claims claims, Fn&& fn) {
    using Body = std::remove_reference_t<Fn>;
    run(
        num_tiles,
        claims,
        [](void* context, int64_t begin, int64_t end, int32_t worker) {
          (*static_cast<Body*>(context))(begin, end, worker);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Calls fn(tile, worker), one tile per claim.
  template <typename Fn>
  void parallel_for(int64_t num_tiles, Fn&& fn) {
    parallel_for_chunked(num_tiles, {}, [&fn](int64_t begin, int64_t end, int32_t worker) {
      for (int64_t tile = begin; tile < end; ++tile) fn(tile, worker);
    });
  }

 private:
  void worker_main(int32_t worker);
  void work(uint64_t state, int32_t worker);
  uint32_t claim_and_run(uint64_t state, int32_t owner, int32_t worker);

  const int32_t num_threads_;
  const Placement placement_;
  std::vector<std::thread> threads_;

  // The unclaimed rest of a worker's part, in units: epoch << 32 | begin << 16 | end. An older
  // epoch means the whole part.
  struct alignas(64) Part {
    std::atomic<uint64_t> left{0};
  };

  // The job, written by worker 0 before state_ names its epoch. Claims are compare-and-swaps on
  // parts, so a late worker of an older epoch never takes a tile of a newer one. One cache line
  // holds all that a worker reads of the job.
  alignas(64) std::atomic<TileFn> fn_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> num_tiles_{0};
  std::atomic<int64_t> unit_{1};  // tiles of a unit; claims take whole units
  std::atomic<uint32_t> shares_{0};
  std::atomic<uint32_t> epoch_{0};  // futex of the other workers
  std::atomic<uint64_t> state_{0};  // epoch << 32 | units of the job

  alignas(64) std::atomic<uint32_t> unfinished_{0};  // units of the job; futex of worker 0
  std::atomic<uint32_t> caller_parked_{0};
  alignas(64) std::atomic<uint32_t> num_parked_{0};
  std::atomic<bool> stop_{false};
  std::unique_ptr<Part[]> parts_;
};

}  // namespace sluice::kernels::cpu
