// SPDX-License-Identifier: Apache-2.0
// Stages in processes, played by threads: what crosses their borders, and what ends it.
#include "engine/parallel/stage_ranks.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/run/rank_processes.h"
#include "tests/engine/rank_group_rig.h"

namespace sluice {
namespace {

using testing::connect;
using testing::group_of;
using testing::kMostWords;
using testing::on_each;
using testing::word;
using testing::wrong_words;
using Clock = std::chrono::steady_clock;

// Words go from each rank to the next one, in pieces and in all sizes; ranks that have neither end
// do not wait.
TEST(StageRanks, WordsPassFromRankToRankAndTouchNoOther) {
  for (const char* const transport : {"tcp", "shm", ""}) {
    for (const int32_t size : {2, 3, 4}) {
      const auto groups = group_of(size);
      auto local = make_local_ranks(size);
      std::atomic<int> wrong = 0;
      on_each(size, [&](int32_t rank) {
        auto own = *transport == 0
                       ? std::move(local[static_cast<size_t>(rank)])
                       : connect(*groups[static_cast<size_t>(rank)], transport, kMostWords * 4);
        size_t round = 0;
        for (const size_t count : {size_t{1}, size_t{300}, size_t{1} << 18, size_t{700'001}}) {
          for (int32_t from = 0; from < size; ++from, ++round) {
            const int32_t to = (from + 1) % size;
            std::vector<uint32_t> words(count);
            for (size_t i = 0; i < count; ++i) words[i] = word(rank, round, i);
            if (!pass_all(*own, from, to, std::as_writable_bytes(std::span(words)))) ++wrong;
            const int32_t whose = rank == to ? from : rank;
            for (size_t i = 0; i < count; ++i) wrong += words[i] != word(whose, round, i);
          }
        }
      });
      EXPECT_EQ(wrong, 0) << transport << " " << size;
    }
  }
}

// Rank 1 gives a word with a hash that is not its own; rank 0 hands it on.
TEST(StageRanks, AWordThatChangesOnTheWayFailsTheGroupWithItsRank) {
  const auto groups = group_of(3);
  const uint64_t size = sizeof(uint32_t);
  const std::array<uint64_t, 3> header = {size, XXH3_64bits(&size, sizeof(size)), 1};
  std::array<std::byte, sizeof(header) + sizeof(uint32_t)> changed{};
  std::memcpy(changed.data(), header.data(), sizeof(header));
  const auto first = make_stream_stage(*groups[0], groups[0]->all());
  EXPECT_TRUE(groups[1]->send_rows(0, changed));
  uint32_t part = 0;
  const auto words = std::as_writable_bytes(std::span(&part, 1));
  EXPECT_FALSE(make_stream_stage(*groups[2], groups[2]->all())->pass(1, 2, words));
  EXPECT_FALSE(first->pass(2, 0, words));
  for (const int32_t rank : {0, 2}) {
    EXPECT_NE(groups[static_cast<size_t>(rank)]->why().find(
                  "rank 1: its part of exchange 1 is not what it sent"),
              std::string::npos);
  }
}

// Rank 0 gives the rows of four steps before it takes any back: no rank waits for it, whatever the
// rows' sizes. Each rank adds its number to them.
TEST(StageRanks, SeveralStepsGoRoundBeforeRankZeroTakesTheFirst) {
  constexpr int32_t kSteps = 4;
  constexpr size_t kWords[] = {1, 700'000, 64, 0, 300'000, 5, 262'144, 1};
  for (const char* const transport : {"tcp", "shm"}) {
    for (const int32_t size : {2, 3, 4}) {
      const auto groups = group_of(size);
      std::vector<std::unique_ptr<Communicator>> all(static_cast<size_t>(size));
      on_each(size, [&](int32_t rank) {
        const auto index = static_cast<size_t>(rank);
        all[index] = connect(*groups[index], transport, 4 * 700'000);
        Communicator& own = *all[index];
        std::vector<uint32_t> rows;
        const auto pass = [&](int32_t from) {
          return pass_all(own, from, (from + 1) % size, std::as_writable_bytes(std::span(rows)));
        };
        for (size_t n = 0; n < std::size(kWords) + kSteps; ++n) {
          if (rank == 0 && n >= kSteps) {
            rows.assign(kWords[n - kSteps], 0);
            EXPECT_TRUE(pass(size - 1));
            const auto wanted = static_cast<uint32_t>(n - kSteps + size * (size - 1) / 2);
            EXPECT_EQ(std::ranges::count(rows, wanted), static_cast<ptrdiff_t>(rows.size()));
          }
          if (n >= std::size(kWords)) continue;
          rows.assign(kWords[n], static_cast<uint32_t>(n));
          for (int32_t from = 0; from + 1 < size; ++from) {
            if (rank == from + 1) {
              EXPECT_TRUE(pass(from));
              for (uint32_t& word : rows) word += static_cast<uint32_t>(rank);
            } else if (rank == from) {
              EXPECT_TRUE(pass(from));
            }
          }
          if (rank + 1 == size) {
            EXPECT_TRUE(pass(rank));
          }
        }
      });
      EXPECT_FALSE(groups[0]->has_failed()) << transport << " " << groups[0]->why();
    }
  }
}

// Rank 0, which waits for the last stage, and that one, which waits for another, know who is gone.
TEST(StageRanks, AStageThatIsGoneFailsAllWithItsName) {
  for (const char* const transport : {"tcp", "shm"}) {
    auto groups = group_of(3);
    const auto begun = Clock::now();
    on_each(3, [&](int32_t rank) {
      auto& own = groups[static_cast<size_t>(rank)];
      auto made = connect(*own, transport, 4096);
      uint32_t word = 0;
      const auto rows = std::as_writable_bytes(std::span(&word, 1));
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        made.reset();
        return own.reset();  // without an end, as if it were killed
      }
      EXPECT_FALSE(made->pass(rank == 0 ? 2 : 1, rank, rows));
    });
    // Rank 2 has it from rank 0.
    const std::string words = "rank 1 at 127.0.0.1:";
    for (const size_t rank : {0, 2}) {
      EXPECT_NE(groups[rank]->why().find(words), std::string::npos) << groups[rank]->why();
      EXPECT_EQ(groups[rank]->why().find("silent"), std::string::npos) << groups[rank]->why();
    }
    EXPECT_LT(Clock::now() - begun, RankGroup::kExchange);
  }
}

// A stage that waits for rows, and rank 0, which ends the group meanwhile.
TEST(StageRanks, AnOrderlyEndEndsWhatWaits) {
  for (const char* const transport : {"tcp", "shm"}) {
    auto groups = group_of(2);
    const auto begun = Clock::now();
    on_each(2, [&](int32_t rank) {
      RankGroup& group = *groups[static_cast<size_t>(rank)];
      const auto own = connect(group, transport, 4096);
      if (rank == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return group.end();
      }
      uint32_t word = 0;
      EXPECT_FALSE(own->pass(0, 1, std::as_writable_bytes(std::span(&word, 1))));
    });
    EXPECT_LT(Clock::now() - begun, RankGroup::kExchange);
    for (const auto& group : groups) EXPECT_EQ(group->why(), "") << transport;
    groups.pop_back();  // rank 0 waits for it
  }
}

// Two stages of two: each gathers on its own connections or memory, and their first ranks pass
// words; a stage is named by its ranks in the group.
TEST(StageRanks, RanksOfAStageExchangeBesideItsBorders) {
  constexpr size_t kWords = 70'000;
  for (const char* const transport : {"tcp", "shm"}) {
    const auto groups = group_of(4);
    std::barrier all_have_passed(4);
    on_each(4, [&](int32_t rank) {
      RankGroup& group = *groups[static_cast<size_t>(rank)];
      ASSERT_TRUE(meet_in_stages(group, 2).has_value()) << group.why();
      auto made = connect_processes(group,
                                    transport,
                                    {.part_bytes = int64_t{kMostWords} * 4,
                                     .num_stages = 2,
                                     .passed_bytes = Communicator::kPassBytes,
                                     .returned_bytes = 4096});
      ASSERT_TRUE(made.has_value()) << group.why();
      ASSERT_EQ(made->stage != nullptr, rank % 2 == 0);
      std::vector<uint32_t> words(kWords, 5);
      const auto pass = [&](int32_t from) {
        return made->stage == nullptr ||
               made->stage->pass(from, 1 - from, std::as_writable_bytes(std::span(words)));
      };
      EXPECT_EQ(wrong_words(*made->rank), 0) << transport;
      EXPECT_TRUE(pass(0));
      EXPECT_EQ(wrong_words(*made->rank), 0) << transport;
      EXPECT_TRUE(pass(1));
      EXPECT_EQ(std::ranges::count(words, 5U), static_cast<ptrdiff_t>(kWords));
      EXPECT_FALSE(group.has_failed()) << group.why();
      all_have_passed.arrive_and_wait();
      *made->rank->state() = static_cast<uint64_t>(rank == 3);
      if (rank >= 2) {
        EXPECT_TRUE(made->rank->all_gather({}).empty());
      }
      const auto until = Clock::now() + std::chrono::seconds(60);
      while (!group.has_failed() && Clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_NE(group.why().find("rank 3: what it computed before"), std::string::npos)
          << group.why();
    });
  }
}

}  // namespace
}  // namespace sluice
