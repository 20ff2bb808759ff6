// SPDX-License-Identifier: Apache-2.0
// The host side of the NCCL Communicator, against tests/support/fake_nccl.cpp.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/parallel/nccl.h"

namespace sluice {
namespace {

constexpr size_t kPart = 64;  // bytes per part, at most

// Ranks on devices 0 to size - 1, and their receive buffers.
struct Ranks {
  explicit Ranks(int32_t size)
      : received(static_cast<size_t>(size),
                 std::vector<std::byte>(static_cast<size_t>(size) * kPart)) {
    const auto connect = open_nccl(SLUICE_FAKE_NCCL);
    CHECK(connect.has_value());
    std::vector<DeviceRank> ranks;
    for (auto& parts : received) {
      ranks.push_back({.device = static_cast<int32_t>(ranks.size()), .received = parts});
    }
    auto connected = (*connect)(ranks);
    CHECK(connected.has_value());
    ends = std::move(*connected);
  }

  std::vector<std::vector<std::byte>> received;
  std::vector<std::unique_ptr<Communicator>> ends;
};

// Runs body(communicator) for each rank on a separate thread, which also destroys the communicator.
template <typename Body>
void on_ranks(int32_t size, Body body) {
  Ranks ranks(size);
  std::vector<std::thread> threads;
  for (auto& end : ranks.ends) {
    threads.emplace_back([&end, &body] {
      body(*end);
      end.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

uint64_t number(int32_t rank, uint64_t round) { return round * 100 + static_cast<uint64_t>(rank); }

uint64_t number_at(const std::byte* part) {
  uint64_t value = 0;
  std::memcpy(&value, part, sizeof(value));
  return value;
}

TEST(NcclRanks, EveryRankSeesEveryPartInOrderOfRank) {
  for (const int32_t size : {1, 2, 4, 8}) {
    on_ranks(size, [size](Communicator& own) {
      for (uint64_t round = 0; round < 50; ++round) {
        const uint64_t mine = number(own.rank(), round);
        const auto parts = own.all_gather(std::as_bytes(std::span(&mine, 1)));
        ASSERT_EQ(parts.size(), static_cast<size_t>(size));
        for (size_t rank = 0; rank < parts.size(); ++rank) {
          EXPECT_EQ(number_at(parts[rank]), number(static_cast<int32_t>(rank), round));
        }
      }
      EXPECT_FALSE(own.has_failed());
    });
  }
}

TEST(NcclRanks, AnErrorOfOneRanksCallFailsAll) {
  Ranks ranks(4);
  for (const auto& rank : ranks.ends) EXPECT_FALSE(rank->has_failed());
  EXPECT_TRUE(ranks.ends[2]->all_gather(std::vector<std::byte>(13)).empty());  // it is refused
  for (const auto& rank : ranks.ends) EXPECT_TRUE(rank->has_failed());
  // One after the other: none waits for other ranks.
  for (auto& rank : ranks.ends) {
    EXPECT_TRUE(rank->all_gather(std::vector<std::byte>(8)).empty());
    rank.reset();
  }
}

// No call is made meanwhile: a rank waits for a lost one.
TEST(NcclRanks, AnErrorThatNoCallReturnsFailsAll) {
  std::array<std::atomic<bool>, 4> has_failed{};
  Ranks ranks(4);
  const auto watch = [&](size_t rank) {
    ranks.ends[rank]->watch_failure([&, rank] { has_failed[rank] = true; });
  };
  for (const size_t rank : {0, 1, 2}) watch(rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // after the first poll
  EXPECT_TRUE(ranks.ends[2]->all_gather(std::vector<std::byte>(14)).empty());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const auto& rank : ranks.ends) {
    while (!rank->has_failed() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(rank->has_failed());
  }
  EXPECT_FALSE(has_failed[3]);
  watch(3);  // which is late, and waits until the others have been called
  for (const std::atomic<bool>& each : has_failed) EXPECT_TRUE(each);
}

// The library's calls return before other ranks have called: only the GPU waits for them.
TEST(NcclRanks, ACallReturnsWhenEveryRankHasCalled) {
  Ranks ranks(3);
  std::atomic<int> num_returned = 0;
  std::vector<std::thread> threads;
  const auto call = [&](size_t rank) {
    EXPECT_EQ(ranks.ends[rank]->all_gather(std::vector<std::byte>(15)).size(), 3U);
    ++num_returned;
  };
  for (const size_t rank : {0, 2}) threads.emplace_back(call, rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // less would test less
  EXPECT_EQ(num_returned, 0);
  call(1);
  for (std::thread& thread : threads) thread.join();
}

// A watchdog thread fails the rank while others query it.
TEST(NcclRanks, AnyThreadMayFailARank) {
  for (int i = 0; i < 200; ++i) {
    on_ranks(1, [](Communicator& own) {
      std::thread watcher([&own] {
        std::this_thread::yield();
        own.fail();
      });
      while (!own.has_failed()) {
      }
      const std::byte part{};
      EXPECT_TRUE(own.all_gather({&part, 1}).empty());
      watcher.join();
      own.fail();  // repeating it changes nothing
      EXPECT_TRUE(own.has_failed());
    });
  }
}

// The first rank is inside the library, which blocks it until the second arrives or goes.
TEST(NcclRanks, NobodyWaitsForARankThatTheLibraryHoldsUp) {
  std::atomic<Communicator*> held = nullptr;
  on_ranks(2, [&held](Communicator& own) {
    const std::byte part{};
    if (own.rank() == 0) {
      held = &own;
      EXPECT_TRUE(own.all_gather({&part, 1}).empty());
      EXPECT_TRUE(own.has_failed());
      while (held != nullptr) std::this_thread::yield();  // the other rank still reads this one
      return;
    }
    while (held == nullptr) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // less would test less
    EXPECT_FALSE(held.load()->has_failed());
    held.load()->fail();
    EXPECT_TRUE(held.load()->has_failed());
    held = nullptr;
    own.fail();
  });
}

TEST(NcclRanks, WhatIsMissingIsNamed) {
  const auto none = open_nccl("libno-such-nccl.so.9");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(none.error().message.find("libno-such-nccl.so.9"), std::string::npos);
  const auto other = open_nccl("libm.so.6");
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message.find("libm.so.6 has no nccl"), std::string::npos)
      << other.error().message;
}

TEST(NcclRanks, AGroupThatTheLibraryRefusesIsAnErrorThatSaysWhy) {
  const auto connect = open_nccl(SLUICE_FAKE_NCCL);
  ASSERT_TRUE(connect.has_value()) << connect.error().message;
  const std::vector<DeviceRank> twice(2);
  const auto ranks = (*connect)(twice);
  ASSERT_FALSE(ranks.has_value());
  EXPECT_EQ(ranks.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(ranks.error().message,
            "NCCL cannot connect the GPUs: invalid argument: a device twice");
}

}  // namespace
}  // namespace sluice
