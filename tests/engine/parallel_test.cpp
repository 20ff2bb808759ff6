// SPDX-License-Identifier: Apache-2.0
// Gathers between the ranks of one process.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/parallel/parallel.h"

namespace sluice {
namespace {

using Ranks = std::vector<std::unique_ptr<Communicator>>;

// Runs body(communicator) on a thread for each rank.
template <typename Body>
void on_each(const Ranks& ranks, Body body) {
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (const auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

uint32_t number(int32_t rank, uint32_t round) {
  return static_cast<uint32_t>(rank) * 1000003U + round;
}

// Uses two buffers in turn, as in the contract: a call that returned too early would show another
// round's number, or a race.
TEST(LocalRanks, EveryRankSeesEveryPartOfEachRoundInOrderOfRank) {
  for (const int32_t size : {1, 2, 4, 8}) {
    const Ranks ranks = make_local_ranks(size);
    std::atomic<int> wrong = 0;
    // Outlives every rank: the last round's parts are read until the last rank is done.
    std::vector<std::array<uint32_t, 2>> all_buffers(static_cast<size_t>(size));
    on_each(ranks, [&](Communicator& own) {
      EXPECT_EQ(own.size(), size);
      std::array<uint32_t, 2>& buffers = all_buffers[static_cast<size_t>(own.rank())];
      for (uint32_t round = 0; round < 500; ++round) {
        uint32_t& mine = buffers[round % 2];
        mine = number(own.rank(), round);
        const auto parts = own.all_gather(std::as_bytes(std::span(&mine, 1)));
        if (parts.size() != static_cast<size_t>(size)) {
          ++wrong;
          return;
        }
        for (int32_t rank = 0; rank < size; ++rank) {
          const auto* part = reinterpret_cast<const uint32_t*>(parts[static_cast<size_t>(rank)]);
          if (*part != number(rank, round)) ++wrong;
        }
      }
    });
    EXPECT_EQ(wrong, 0) << size << " ranks";
  }
}

// One rank comes late, so that the others are parked, or not yet there, when it fails.
TEST(LocalRanks, AFailedRankLetsTheOthersGo) {
  for (const int delay_ms : {0, 5}) {
    const Ranks ranks = make_local_ranks(4);
    std::atomic<int> num_empty = 0;
    on_each(ranks, [&](Communicator& own) {
      const std::byte part{};
      if (own.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
        own.fail();
        return;
      }
      if (own.all_gather({&part, 1}).empty()) ++num_empty;
      EXPECT_TRUE(own.has_failed());
      if (own.all_gather({&part, 1}).empty()) ++num_empty;
    });
    EXPECT_EQ(num_empty, 6);
  }
}

// Another rank may still read the result of the last complete call.
TEST(LocalRanks, AfterAFailureWhatWasGivenStays) {
  const Ranks ranks = make_local_ranks(2);
  const std::array<std::byte, 4> parts{};
  std::span<const std::byte* const> given;
  on_each(ranks, [&](Communicator& own) {
    const auto all = own.all_gather(std::span(parts).subspan(static_cast<size_t>(own.rank()), 1));
    if (own.rank() == 0) given = all;
  });
  ASSERT_EQ(given.size(), 2U);
  ranks[1]->fail();
  for (const size_t other : {2, 3}) {
    EXPECT_TRUE(ranks[1]->all_gather(std::span(parts).subspan(other, 1)).empty());
  }
  EXPECT_EQ(given[1], &parts[1]);
}

}  // namespace
}  // namespace sluice
