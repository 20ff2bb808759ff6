// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/device.h"

namespace sluice::kernels {
namespace {

using cpu::ThreadPool;

TEST(ThreadPool, RunsEveryTileOnce) {
  for (const int32_t threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t tiles : {0, 1, 2, 3, 7, 64, 1001, 65535, 200001}) {
      for (const ThreadPool::Claims claims :
           {ThreadPool::Claims{1}, {2}, {5}, {2000}, {1, 4}, {2, 8}, {3, 1}}) {
        std::vector<std::atomic<int>> runs(static_cast<size_t>(tiles));
        pool.parallel_for_chunked(tiles, claims, [&](int64_t begin, int64_t end, int32_t worker) {
          ASSERT_LT(begin, end);
          ASSERT_GE(worker, 0);
          ASSERT_LT(worker, threads);
          for (int64_t i = begin; i < end; ++i) runs[static_cast<size_t>(i)].fetch_add(1);
        });
        for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, ResultsOfAllWorkersAreVisibleAfterwards) {
  ThreadPool pool(3);
  std::vector<int64_t> values(97);
  for (int64_t round = 1; round <= 3000; ++round) {
    pool.parallel_for(
        97, [&](int64_t tile, int32_t) { values[static_cast<size_t>(tile)] += tile * round; });
    if (round % 500 != 0) continue;
    for (int64_t i = 0; i < 97; ++i) {
      ASSERT_EQ(values[static_cast<size_t>(i)], i * round * (round + 1) / 2);
    }
  }
}

// With fewer tiles than workers, some have no part and stay behind an epoch or more.
TEST(ThreadPool, JobsOfManySizesFollowEachOther) {
  ThreadPool pool(4);
  std::array<std::atomic<int>, 9> runs{};
  for (int64_t round = 0; round < 9000; ++round) {
    const int64_t tiles = 2 + round * 7 % 8;
    pool.parallel_for(tiles, [&](int64_t tile, int32_t) {
      runs[static_cast<size_t>(tile)].fetch_add(1, std::memory_order_relaxed);
    });
    for (size_t i = 0; i < runs.size(); ++i) {
      ASSERT_EQ(runs[i].exchange(0), static_cast<int64_t>(i) < tiles ? 1 : 0) << round;
    }
  }
}

TEST(ThreadPool, EachWorkerBeginsWithItsPart) {
  ThreadPool pool(2);
  for (const ThreadPool::Claims claims : {ThreadPool::Claims{1}, {2}, {1, 4}}) {
    std::array<std::atomic<int64_t>, 2> first = {-1, -1};
    pool.parallel_for_chunked(16, claims, [&](int64_t begin, int64_t, int32_t worker) {
      int64_t none = -1;
      first[static_cast<size_t>(worker)].compare_exchange_strong(none, begin);
      // No worker takes from the other's part before that has begun.
      while (first[0].load() < 0 || first[1].load() < 0) usleep(10);
    });
    EXPECT_EQ(first[0].load(), 0);
    EXPECT_EQ(first[1].load(), 8);
  }
}

TEST(ThreadPool, WorkersWakeUpAfterParking) {
  ThreadPool pool(2);
  std::atomic<int> sum{0};
  for (int round = 0; round < 20; ++round) {
    usleep(500);  // far beyond the time a worker spins
    pool.parallel_for(8, [&](int64_t, int32_t) { sum.fetch_add(1); });
  }
  EXPECT_EQ(sum.load(), 160);
}

TEST(ThreadPool, AStalledWorkerDoesNotHoldBackTheTiles) {
  ThreadPool pool(2);
  std::atomic<bool> release{false};
  std::atomic<int64_t> done{0};
  std::array<std::atomic<int64_t>, 2> by_worker{};
  constexpr int64_t kTiles = 100;
  // The worker in tile 0 is stuck until the other one has done the rest, unless tile 0 came last.
  pool.parallel_for(kTiles, [&](int64_t tile, int32_t worker) {
    if (tile == 0) {
      while (!release.load()) usleep(50);
    } else if (done.fetch_add(1) + 1 == kTiles - 1) {
      release.store(true);
    }
    by_worker[static_cast<size_t>(worker)].fetch_add(1);
  });
  EXPECT_EQ(by_worker[0].load() + by_worker[1].load(), kTiles);
  EXPECT_LE(std::min(by_worker[0].load(), by_worker[1].load()), 1);
}

TEST(ThreadPool, OneWorkerRunsInTheCaller) {
  ThreadPool pool(1);
  const auto caller = syscall(SYS_gettid);
  pool.parallel_for(4, [&](int64_t, int32_t worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(syscall(SYS_gettid), caller);
  });
}

TEST(ThreadPool, OtherWorkersRunBelowTheirCreator) {
  ThreadPool pool(2);
  const int own = getpriority(PRIO_PROCESS, 0);
  std::atomic<bool> seen{false};
  std::atomic<int> nice{0};
  pool.parallel_for(2, [&](int64_t, int32_t worker) {
    if (worker == 1) {
      nice.store(getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid))));
      seen.store(true);
    } else {
      while (!seen.load()) usleep(50);  // leaves the other tile to worker 1
    }
  });
  EXPECT_EQ(nice.load(), std::min(own + 5, 19));
}

// Returns the CPU that the calling thread may run on; -1: several.
int only_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) != 1) return -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) return cpu;
  }
  return -1;
}

TEST(ThreadPool, WorkersAreWhereThePlacementPutsThem) {
  const Placement placement = make_placement(NumaMode::kOff, true);
  std::thread([&placement] {  // a thread that may be pinned
    ThreadPool pool(3, placement);
    EXPECT_EQ(only_cpu() >= 0, placement.num_cpus() == 1);
    pool.enter();
    std::array<std::atomic<int>, 3> cpus = {-1, -1, -1};
    std::atomic<int> arrived = 0;
    pool.parallel_for(3, [&](int64_t, int32_t worker) {  // a tile for each
      cpus[static_cast<size_t>(worker)] = only_cpu();
      ++arrived;
      while (arrived < 3) usleep(50);
    });
    for (int32_t worker = 0; worker < 3; ++worker) {
      EXPECT_EQ(cpus[static_cast<size_t>(worker)].load(), placement.cpus_of(worker).at(0))
          << worker;
    }
  })
      .join();
}

TEST(Device, RefusesWhatTheMachineHasNot) {
  const auto unknown = Device::create({.isa = "mmx"});
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(unknown.error().message.find("scalar"), std::string::npos);
  const auto cuda = Device::create({.type = DeviceType::kCuda});
  ASSERT_FALSE(cuda.has_value());
  EXPECT_EQ(cuda.error().code, ErrorCode::kUnsupported);
  EXPECT_FALSE(Device::create({.threads = -1}).has_value());
}

TEST(Device, AutoTakesTheBestInstructionSet) {
  const auto device = Device::create({});
  ASSERT_TRUE(device.has_value());
  EXPECT_EQ((*device)->num_threads(), default_num_threads(make_placement(NumaMode::kOff, false)));
  std::string best;
  for (const char* isa : {"scalar", "avx2", "avx512", "amx"}) {
    if (Device::create({.isa = isa})) best = isa;
  }
  EXPECT_EQ((*device)->name(), "cpu:" + best);
}

}  // namespace
}  // namespace sluice::kernels
