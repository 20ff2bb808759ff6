// SPDX-License-Identifier: Apache-2.0
// Clusters in the shim: blocks that run together, their barrier, arrivals at a peer's mbarrier,
// copies for several blocks, and the reports about them.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/support/simt/simt.h"

namespace sluice::simt {
namespace {

namespace ptx = gpu::ptx;
using kernels::test::joined;
using kernels::test::on_schedules;

constexpr int kThreads = 64;

void cluster_sync() {
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

// Returns the reports of a launch of two blocks, by schedule.
std::vector<std::string> reports_of(void (*kernel)(), Mode mode = Mode::kPlain) {
  std::vector<std::string> reports;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    simt::Run run(seed, mode);
    gpu::launch(nullptr, {.blocks_y = 2, .threads = kThreads, .cluster_blocks = 2}, kernel);
    reports.push_back(joined(run.take_reports()));
  }
  return reports;
}

void expect_in(const std::string& got, const std::string& words) {
  EXPECT_NE(got.find(words), std::string::npos) << "'" << got << "' lacks '" << words << "'";
}

void expect_report(void (*kernel)(), const std::string& words) {
  for (const std::string& got : reports_of(kernel)) expect_in(got, words);
}

// Every block waits for its neighbour's writes in the cluster, twice.
void pass_round(std::vector<int>* values, int cluster_blocks) {
  const auto row = static_cast<int>(blockIdx.y);
  const auto at = [&](int y) -> int& {
    return (*values)[static_cast<size_t>(y * static_cast<int>(gridDim.x)) + blockIdx.x];
  };
  const int rank = ptx::cluster_rank();
  EXPECT_EQ(rank, row % cluster_blocks);
  const int next = row - rank + (rank + 1) % cluster_blocks;
  if (threadIdx.x == 40) at(row) = row + 1;
  cluster_sync();
  const int got = at(next);
  cluster_sync();
  if (threadIdx.x == 40) at(row) = got;
}

TEST(SimtCluster, BlocksOfAClusterMeet) {
  for (const int blocks : {1, 2, 4}) {
    on_schedules([&] {
      std::vector<int> values(3 * 8);
      gpu::launch(nullptr,
                  {.blocks_x = 3, .blocks_y = 8, .threads = kThreads, .cluster_blocks = blocks},
                  pass_round,
                  &values,
                  blocks);
      for (int i = 0; i < 3 * 8; ++i) {
        const int row = i / 3;
        const int next = row - row % blocks + (row + 1) % blocks;
        EXPECT_EQ(values[static_cast<size_t>(i)], next + 1);
      }
    });
  }
}

TEST(SimtCluster, ABlockThatHasEndedIsNotWaitedFor) {
  on_schedules([] {
    gpu::launch(
        nullptr, {.blocks_y = 2, .threads = kThreads, .cluster_blocks = 2}, +[] {
          if (blockIdx.y == 1) return;
          cluster_sync();
          if (threadIdx.x >= 32) return;
          cluster_sync();
        });
  });
}

struct Halves {
  alignas(1024) uint8_t bytes[16 * 128];
  ptx::Mbarrier full;
  ptx::Mbarrier empty;
};

__device__ void initialize(Halves& halves, int arrivals) {
  if (threadIdx.x == 0) {
    ptx::mbar_init(&halves.full, 1);
    ptx::mbar_init(&halves.empty, arrivals);
    ptx::fence_mbar_init();
  }
  cluster_sync();
}

constexpr int32_t kRounds = 3;
constexpr uint32_t kBoxBytes = 8 * 128;

// Each block copies 8 rows of 16 for both, repeatedly to the same place.
void share_copies(const gpu::TensorMap map, std::vector<uint8_t>* out) {
  GPU_DYN_SHARED(Halves, halves);
  initialize(halves, 2 * kThreads);
  const int rank = ptx::cluster_rank();
  for (int32_t round = 0; round < kRounds; ++round) {
    if (threadIdx.x == 0) {
      ptx::mbar_wait_cluster(&halves.empty, round % 2 ^ 1);
      ptx::mbar_arrive_expect_tx(&halves.full, 2 * kBoxBytes);
      ptx::tma_load_multicast_2d(halves.bytes + rank * int32_t{kBoxBytes},
                                 &map,
                                 0,
                                 round * 16 + rank * 8,
                                 &halves.full,
                                 0b11);
    }
    ptx::mbar_wait(&halves.full, round % 2);
    for (auto i = static_cast<size_t>(threadIdx.x); i < 2 * kBoxBytes; i += kThreads) {
      const size_t block = blockIdx.y * kRounds + static_cast<size_t>(round);
      (*out)[block * 2 * kBoxBytes + i] = halves.bytes[i];
    }
    for (int peer = 0; peer < 2; ++peer) {
      ptx::mbar_arrive_peer(ptx::peer_address(&halves.empty, peer));
    }
  }
  cluster_sync();
}

gpu::TensorMap map_of(const uint8_t* data) {
  return gpu::make_tensor_map({.data = data,
                               .element_bytes = 1,
                               .rank = 2,
                               .sizes = {128, kRounds * 16},
                               .strides = {0, 128},
                               .box = {128, 8}});
}

TEST(SimtCluster, ACopyLandsInEveryBlockThatItNames) {
  alignas(16) static uint8_t data[kRounds * 16 * 128];
  for (size_t i = 0; i < sizeof(data); ++i) data[i] = static_cast<uint8_t>(i % 251 + 1);
  const gpu::TensorMap map = map_of(data);
  on_schedules([&] {
    std::vector<uint8_t> out(2 * sizeof(data));
    gpu::launch(
        nullptr,
        {.blocks_y = 2, .threads = kThreads, .shared_bytes = sizeof(Halves), .cluster_blocks = 2},
        share_copies,
        map,
        &out);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], data[i % sizeof(data)]) << i;
  });
}

TEST(SimtClusterErrors, HalvesOfTheBarrierComeInTurns) {
  expect_report([] { ptx::cluster_wait(); }, "cluster_wait at cluster_test.cpp:");
  expect_report(
      [] {
        ptx::cluster_arrive();
        if (threadIdx.x == 5) ptx::cluster_arrive();
        ptx::cluster_wait();
      },
      "twice without a cluster_wait");
}

TEST(SimtClusterErrors, ADeadlockNamesTheBlock) {
  const auto kernel = [] {
    GPU_SHARED(ptx::Mbarrier, barrier, 1);
    if (threadIdx.x > 0) return;
    ptx::mbar_init(barrier, 1);
    if (blockIdx.y == 1) ptx::mbar_wait(barrier, 0);
    cluster_sync();
  };
  for (const std::string& got : reports_of(kernel)) {
    expect_in(got, "deadlock: 1 threads wait in cluster_wait at cluster_test.cpp:");
    expect_in(got, "63 threads left the kernel in block 0");
    expect_in(got, "63 threads left the kernel in block 1");
  }
}

TEST(SimtClusterErrors, AnArrivalAtABlockThatHasEndedIsNamed) {
  expect_report(
      [] {
        GPU_SHARED(ptx::Mbarrier, barrier, 1);
        if (threadIdx.x == 0) ptx::mbar_init(barrier, 1);
        cluster_sync();
        if (blockIdx.y == 1) return;
        cluster_sync();
        if (threadIdx.x == 9) ptx::mbar_arrive_peer(ptx::peer_address(barrier, 1));
      },
      "shared memory of block 1 of the cluster, which has ended");
}

// Race mode sees it, whenever the arrival comes.
TEST(SimtClusterErrors, AnArrivalThatNothingOrdersBeforeTheEndIsNamed) {
  const auto kernel = [] {
    GPU_SHARED(ptx::Mbarrier, barrier, 1);
    if (threadIdx.x == 0) ptx::mbar_init(barrier, 1);
    cluster_sync();
    if (blockIdx.y == 0 && threadIdx.x == 9) {
      ptx::mbar_arrive_peer(ptx::peer_address(barrier, 1));
    }
  };
  const std::vector<std::string> reports = reports_of(kernel, Mode::kRace);
  for (const std::string& got : reports) expect_in(got, "of the cluster");
  expect_in(joined(reports),
            "race: block 1 of the cluster may have ended before thread 9 of block 0 arrives");
}

TEST(SimtClusterErrors, ArrivalsOfPeersAreCounted) {
  expect_report(
      [] {
        GPU_SHARED(ptx::Mbarrier, barrier, 1);
        if (threadIdx.x == 0) ptx::mbar_init(barrier, 3);
        cluster_sync();
        if (threadIdx.x == 0) ptx::mbar_arrive_expect_tx(barrier, 16);  // these bytes never come
        cluster_sync();
        if (threadIdx.x < 2) ptx::mbar_arrive_peer(ptx::peer_address(barrier, 1));
        cluster_sync();
      },
      "more arrivals than the 3 of the phase");
}

TEST(SimtClusterErrors, AnMbarrierOfAPeerNeedsAClusterBarrierAfterItsInit) {
  const auto kernel = [] {
    GPU_SHARED(ptx::Mbarrier, barrier, 1);
    if (threadIdx.x == 0) ptx::mbar_init(barrier, 2);
    __syncthreads();
    if (threadIdx.x == 0) ptx::mbar_arrive_peer(ptx::peer_address(barrier, 1));
    cluster_sync();
  };
  for (const std::string& got : reports_of(kernel, Mode::kRace)) EXPECT_NE(got, "");
}

TEST(SimtClusterErrors, ABlockOutsideOfTheClusterIsNamed) {
  expect_report(
      [] {
        GPU_SHARED(ptx::Mbarrier, barrier, 1);
        ptx::peer_address(barrier, 2);
      },
      "block 2 of a cluster of 2");
}

// Copies one box for the blocks of `ranks` after block 1 has left.
void copy_late(const gpu::TensorMap map, int ranks) {
  GPU_DYN_SHARED(Halves, halves);
  initialize(halves, 1);
  if (blockIdx.y == 1) return;
  cluster_sync();
  if (threadIdx.x != 0) return;
  ptx::mbar_arrive_expect_tx(&halves.full, kBoxBytes);
  ptx::tma_load_multicast_2d(halves.bytes, &map, 0, 0, &halves.full, static_cast<uint16_t>(ranks));
  ptx::mbar_wait(&halves.full, 0);
}

TEST(SimtClusterErrors, ACopyForABlockThatIsNotThereIsNamed) {
  alignas(16) static uint8_t data[kRounds * 16 * 128];
  const gpu::TensorMap map = map_of(data);
  const auto report_of = [&](int ranks) {
    simt::Run run(0);
    gpu::launch(
        nullptr,
        {.blocks_y = 2, .threads = kThreads, .shared_bytes = sizeof(Halves), .cluster_blocks = 2},
        copy_late,
        map,
        ranks);
    return joined(run.take_reports());
  };
  EXPECT_EQ(report_of(0b01), "");
  EXPECT_NE(report_of(0b11).find("shared memory of block 1 of the cluster, which has ended"),
            std::string::npos);
  EXPECT_NE(report_of(0b101).find("of mask 5 of a cluster of 2"), std::string::npos);
  EXPECT_NE(report_of(0).find("of mask 0 of a cluster of 2"), std::string::npos);
}

TEST(SimtClusterErrors, ALaunchThatNoDeviceTakesIsNamed) {
  const auto report_of = [](int64_t blocks_y, int cluster_blocks) {
    simt::Run run(0);
    gpu::launch(
        nullptr,
        {.blocks_y = blocks_y, .threads = kThreads, .cluster_blocks = cluster_blocks},
        +[] {});
    return joined(run.take_reports());
  };
  EXPECT_EQ(report_of(4, 2), "");
  EXPECT_EQ(report_of(3, 2), "launch: clusters of 2 of 3 blocks along y\n");
  EXPECT_EQ(report_of(18, 9), "launch: clusters of 9 of 18 blocks along y\n");
  const GivenDevice ampere(80);
  EXPECT_EQ(report_of(4, 1), "");
  EXPECT_EQ(report_of(4, 2), "launch: clusters on a device of 80\n");
}

}  // namespace
}  // namespace sluice::simt
