// SPDX-License-Identifier: Apache-2.0
// The host side of the Communicator over NCCL, against tests/support/fake_nccl.cpp.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/nccl.h"

namespace sluice {
namespace {

constexpr size_t kPart = 64;  // bytes, at most

// body(communicator) for each rank, on a thread of its own.
template <typename Body>
void on_ranks(int32_t size, Body body) {
  const auto nccl = Nccl::open(SLUICE_FAKE_NCCL);
  ASSERT_TRUE(nccl.has_value()) << nccl.error().message;
  const auto id = (*nccl)->make_id();
  ASSERT_TRUE(id.has_value());
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<std::byte> received(static_cast<size_t>(size) * kPart);
      auto communicator =
          Nccl::connect(*nccl, *id, {.rank = rank, .size = size, .received = received});
      ASSERT_TRUE(communicator.has_value()) << communicator.error().message;
      EXPECT_EQ((*communicator)->rank(), rank);
      EXPECT_EQ((*communicator)->size(), size);
      body(**communicator);
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

TEST(NcclRanks, AnErrorOfTheLibraryOnOneRankLetsTheOthersGo) {
  std::atomic<int> num_empty = 0;
  on_ranks(4, [&num_empty](Communicator& own) {
    const std::vector<std::byte> part(own.rank() == 2 ? 13 : 8);  // 13: the library refuses
    if (own.all_gather(part).empty()) ++num_empty;
    EXPECT_TRUE(own.has_failed());
    if (own.all_gather(part).empty()) ++num_empty;
  });
  EXPECT_EQ(num_empty, 8);
}

// Of ranks that know each other; parts of 13 bytes are refused.
TEST(NcclRanks, RanksOfAProcessFailTogether) {
  const auto connect = make_nccl_group(SLUICE_FAKE_NCCL);
  ASSERT_TRUE(connect.has_value());
  std::array<std::unique_ptr<Communicator>, 4> ranks;
  std::array<std::array<std::byte, 4 * kPart>, 4> received{};
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < 4; ++i) {
    const auto rank = static_cast<size_t>(i);
    threads.emplace_back([&, i, rank] {
      ranks[rank] =
          std::move(*(*connect)({.rank = i, .size = 4, .received = std::span(received[rank])}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& rank : ranks) EXPECT_FALSE(rank->has_failed());
  EXPECT_TRUE(ranks[2]->all_gather(std::vector<std::byte>(13)).empty());
  for (const auto& rank : ranks) EXPECT_TRUE(rank->has_failed());
  // One after the other: none waits for the others.
  for (auto& rank : ranks) {
    EXPECT_TRUE(rank->all_gather(std::vector<std::byte>(8)).empty());
    rank.reset();
  }
}

// As whoever watches over the ranks does, while they ask.
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
      own.fail();  // once more changes nothing
      EXPECT_TRUE(own.has_failed());
    });
  }
}

// The first rank is inside of the library, which holds it until the second comes or goes.
TEST(NcclRanks, NobodyWaitsForARankThatTheLibraryHoldsUp) {
  std::atomic<Communicator*> held = nullptr;
  on_ranks(2, [&held](Communicator& own) {
    const std::byte part{};
    if (own.rank() == 0) {
      held = &own;
      EXPECT_TRUE(own.all_gather({&part, 1}).empty());
      EXPECT_TRUE(own.has_failed());
      return;
    }
    while (held == nullptr) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // less would test less
    EXPECT_FALSE(held.load()->has_failed());
    held.load()->fail();
    EXPECT_TRUE(held.load()->has_failed());
    own.fail();
  });
}

TEST(NcclRanks, WhatIsMissingIsNamed) {
  const auto none = Nccl::open("libno-such-nccl.so.9");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(none.error().message.find("libno-such-nccl.so.9"), std::string::npos);
  const auto other = Nccl::open("libm.so.6");
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message.find("libm.so.6 has no nccl"), std::string::npos)
      << other.error().message;
}

TEST(NcclRanks, AGroupThatTheLibraryRefusesIsAnError) {
  const auto nccl = Nccl::open(SLUICE_FAKE_NCCL);
  ASSERT_TRUE(nccl.has_value()) << nccl.error().message;
  const auto id = (*nccl)->make_id();
  const auto communicator = Nccl::connect(*nccl, *id, {.rank = 0, .size = 9, .received = {}});
  ASSERT_FALSE(communicator.has_value());
  EXPECT_EQ(communicator.error().message, "ncclCommInitRank: invalid argument");
}

}  // namespace
}  // namespace sluice
