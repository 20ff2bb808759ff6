// SPDX-License-Identifier: Apache-2.0
// Groups of ranks in processes, played by threads: how they meet, what they exchange, and how each
// finds out that another is gone.
#include "engine/parallel/rank_group.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/core/config.h"
#include "engine/parallel/group_handshake.h"
#include "engine/parallel/rank_transport.h"
#include "engine/parallel/shared_ranks.h"
#include "engine/parallel/stage_ranks.h"
#include "engine/parallel/stream_ranks.h"
#include "engine/run/rank_processes.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using Met = Expected<std::unique_ptr<RankGroup>>;

uint16_t free_port() {
  const auto listener = GroupListener::open("127.0.0.1", 0);
  CHECK(listener.has_value());
  return (*listener)->port();
}

RankGroupOptions options(int32_t rank, int32_t size, uint16_t port) {
  return {.rank = rank,
          .size = size,
          .host = "127.0.0.1",
          .port = port,
          .secret = "a secret of this test",
          .build = "build 1",
          .init_timeout_s = 20};
}

// Meets with these options, one thread each; by rank.
std::vector<Met> meet(const std::vector<RankGroupOptions>& all) {
  std::vector<std::future<Met>> meetings;
  for (const RankGroupOptions& own : all) {
    meetings.push_back(std::async(std::launch::async, [&own] { return RankGroup::meet(own); }));
  }
  std::vector<Met> met;
  for (auto& meeting : meetings) met.push_back(meeting.get());
  return met;
}

std::vector<std::unique_ptr<RankGroup>> group_of(int32_t size) {
  const uint16_t port = free_port();
  std::vector<RankGroupOptions> all;
  for (int32_t rank = 0; rank < size; ++rank) all.push_back(options(rank, size, port));
  std::vector<std::unique_ptr<RankGroup>> groups;
  for (Met& met : meet(all)) {
    CHECK(met.has_value());
    groups.push_back(std::move(*met));
  }
  return groups;
}

// Runs body(rank) for each on a thread.
template <typename Body>
void on_each(int32_t size, Body body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

uint32_t word(int32_t rank, size_t round, size_t i) {
  return static_cast<uint32_t>(rank * 7919 + static_cast<int32_t>(round * 104729 + i));
}

constexpr size_t kMostWords = 3 << 20;

// Gathers parts of all sizes, from nothing to more than the buffers of a connection, from two
// buffers in turn; a rank that the round's number picks comes late. Returns how many words differ.
int wrong_words(Communicator& own) {
  constexpr size_t kWords[] = {1, 0, 77, kMostWords, 5, 4096, 1 << 18, 1};
  int wrong = 0;
  std::array<std::vector<uint32_t>, 2> buffers;
  for (size_t round = 0; round < std::size(kWords); ++round) {
    if (static_cast<int32_t>(round) % own.size() == own.rank()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::vector<uint32_t>& mine = buffers[round % 2];
    mine.resize(kWords[round]);
    for (size_t i = 0; i < mine.size(); ++i) mine[i] = word(own.rank(), round, i);
    const auto parts = own.all_gather(std::as_bytes(std::span(mine)));
    if (parts.size() != static_cast<size_t>(own.size())) return 1;
    for (int32_t other = 0; other < own.size(); ++other) {
      for (size_t i = 0; i < kWords[round]; i += 1 + kWords[round] / 1000) {
        uint32_t found = 0;
        std::memcpy(&found, parts[static_cast<size_t>(other)] + i * 4, 4);
        if (found != word(other, round, i)) ++wrong;
      }
    }
  }
  return wrong;
}

std::unique_ptr<Communicator> connect(RankGroup& group,
                                      const std::string& transport,
                                      int64_t returned_bytes = 0) {
  auto made = connect_processes(
      group,
      transport,
      {.part_bytes = returned_bytes > 0 ? Communicator::kPassBytes : int64_t{kMostWords} * 4,
       .returned_bytes = returned_bytes});
  CHECK(made.has_value());
  return std::move(made->rank);
}

TEST(ProcessRanks, EveryRankSeesEveryPartOfEachRound) {
  for (const char* const transport : {"tcp", "shm", "auto"}) {
    for (const int32_t size : {2, 3, 4}) {
      const auto groups = group_of(size);
      std::atomic<int> wrong = 0;
      on_each(size, [&](int32_t rank) {
        const auto own = connect(*groups[static_cast<size_t>(rank)], transport);
        wrong += wrong_words(*own);
      });
      EXPECT_EQ(wrong, 0) << transport << " " << size;
    }
  }
}

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

// Rank 1 as it is on another machine: the ticket is of no use there.
void decline_memory(RankGroup& group) {
  SharedSegment::Ticket ticket;
  uint32_t answer = 0;
  EXPECT_TRUE(group.receive(0, std::as_writable_bytes(std::span(&ticket, 1))));
  EXPECT_GT(ticket.bytes, 0U);
  EXPECT_TRUE(group.send(0, std::as_bytes(std::span(&answer, 1))));
  if (!group.receive(0, std::as_writable_bytes(std::span(&answer, 1)))) return;
  EXPECT_EQ(answer, 0U);
}

TEST(ProcessRanks, OneWithoutTheMemoryOfRank0LetsAllUseTcp) {
  const auto groups = group_of(3);
  std::atomic<int> wrong = 0;
  on_each(3, [&](int32_t rank) {
    RankGroup& group = *groups[static_cast<size_t>(rank)];
    if (rank == 1) decline_memory(group);
    const auto own = rank == 1 ? make_stream_rank(group) : connect(group, "auto");
    wrong += wrong_words(*own);
  });
  EXPECT_EQ(wrong, 0);
}

TEST(ProcessRanks, MemoryThatIsInsistedOnIsRefusedWithTheRankThatLacksIt) {
  const auto groups = group_of(2);
  std::thread far([&] { decline_memory(*groups[1]); });
  const auto made = connect_processes(*groups[0], "shm", {.part_bytes = 4096});
  far.join();
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(made.error().message.find("rank 1 shares no memory with rank 0"), std::string::npos)
      << made.error().message;
  EXPECT_EQ(groups[0]->why(), made.error().message);
}

TEST(SharedSegment, GoesToWhoHasTheToken) {
  const auto soon = [] { return Clock::now() + std::chrono::seconds(2); };
  const auto made = SharedSegment::make(8192);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  SharedSegment::Ticket forged = (*made)->ticket();
  forged.token.fill(0);
  const auto stranger = SharedSegment::knock(forged);
  const auto door = SharedSegment::knock((*made)->ticket());
  ASSERT_TRUE(stranger.has_value() && door.has_value());
  ASSERT_TRUE((*made)->hand_over(soon()).has_value());
  EXPECT_FALSE(SharedSegment::take(**stranger, forged, Clock::now()).has_value());
  const auto taken = SharedSegment::take(**door, (*made)->ticket(), soon());
  ASSERT_TRUE(taken.has_value()) << taken.error().message;
  (*made)->bytes()[8191] = std::byte{7};
  EXPECT_EQ((*taken)->bytes()[8191], std::byte{7});
  // Nobody comes, and one who expects another size.
  EXPECT_FALSE((*made)->hand_over(Clock::now()).has_value());
  SharedSegment::Ticket larger = (*made)->ticket();
  larger.bytes = 16384;
  const auto other = SharedSegment::knock(larger);
  ASSERT_TRUE(other.has_value() && (*made)->hand_over(soon()).has_value());
  EXPECT_FALSE(SharedSegment::take(**other, larger, soon()).has_value());
  SharedSegment::Ticket nowhere = larger;
  nowhere.name.fill(0);
  EXPECT_FALSE(SharedSegment::knock(nowhere).has_value());
}

// What a rank finds in memory that another wrote wrongly ends the group, not the process.
TEST(SharedRanks, APartOfAnotherExchangeFailsTheGroup) {
  const auto groups = group_of(2);
  std::vector<uint32_t> words(16);
  std::thread other([&] {
    const auto own = connect(*groups[1], "shm");
    (void)own->all_gather(std::as_bytes(std::span(words).first(8)));
  });
  const auto own = connect(*groups[0], "shm");
  EXPECT_TRUE(own->all_gather(std::as_bytes(std::span(words))).empty());
  other.join();
  EXPECT_NE(groups[0]->why().find("of another exchange"), std::string::npos) << groups[0]->why();
}

// Rank 1 sends a part and a trailer whose hash is not theirs.
TEST(StreamRanks, AWordThatChangesOnTheWayFailsTheGroupWithItsRank) {
  const auto groups = group_of(2);
  const std::array<std::byte, sizeof(uint32_t) + 2 * sizeof(uint64_t)> changed{};
  EXPECT_TRUE(groups[1]->send(0, changed));
  const uint32_t part = 0;
  EXPECT_TRUE(make_stream_rank(*groups[0])->all_gather(std::as_bytes(std::span(&part, 1))).empty());
  EXPECT_EQ(groups[0]->why(), "rank 1: its part of exchange 1 is not what it sent");
}

// Rank 1 gives a word with a hash that is not its own; rank 0 hands it on.
TEST(StageRanks, AWordThatChangesOnTheWayFailsTheGroupWithItsRank) {
  const auto groups = group_of(3);
  const uint64_t size = sizeof(uint32_t);
  const std::array<uint64_t, 3> header = {size, XXH3_64bits(&size, sizeof(size)), 1};
  std::array<std::byte, sizeof(header) + sizeof(uint32_t)> changed{};
  std::memcpy(changed.data(), header.data(), sizeof(header));
  const auto first = make_stream_stage(*groups[0]);
  EXPECT_TRUE(groups[1]->send_rows(0, changed));
  uint32_t part = 0;
  const auto words = std::as_writable_bytes(std::span(&part, 1));
  EXPECT_FALSE(make_stream_stage(*groups[2])->pass(1, 2, words));
  EXPECT_FALSE(first->pass(2, 0, words));
  for (const int32_t rank : {0, 2}) {
    EXPECT_NE(groups[static_cast<size_t>(rank)]->why().find(
                  "rank 1: its part of exchange 1 is not what it sent"),
              std::string::npos);
  }
}

// Rank 1 has the memory under its rank, and changes its part before rank 0 reads it.
void expect_named_in_memory(bool passes) {
  constexpr ExchangeSizes kSizes = {.part_bytes = 4096, .returned_bytes = 4096};
  const auto groups = group_of(2);
  auto memory = SharedSegment::make(static_cast<size_t>(
      passes ? shared_stage_bytes(2, kSizes) : shared_rank_bytes(2, kSizes.part_bytes)));
  ASSERT_TRUE(memory.has_value());
  const std::span<std::byte> bytes = (*memory)->bytes();
  const auto soon = Clock::now() + std::chrono::seconds(5);
  const auto door = SharedSegment::knock((*memory)->ticket());
  ASSERT_TRUE(door.has_value() && (*memory)->hand_over(soon).has_value());
  auto taken = SharedSegment::take(**door, (*memory)->ticket(), soon);
  ASSERT_TRUE(taken.has_value());
  const auto made = [&](size_t rank, auto segment) {
    return passes ? make_shared_stage(*groups[rank], std::move(segment), kSizes)
                  : make_shared_rank(*groups[rank], std::move(segment), kSizes.part_bytes);
  };
  const auto send = [passes](Communicator& rank) {
    std::vector<uint32_t> part(1024, 0x01020304);
    const auto words = std::as_writable_bytes(std::span(part));
    return passes ? rank.pass(1, 0, words) : !rank.all_gather(words).empty();
  };
  std::thread other([&] {
    const auto rank = made(1, std::move(*taken));
    (void)send(*rank);
  });
  // Rank 1's number comes after its part and hash.
  auto* const number = reinterpret_cast<uint32_t*>(bytes.data() + 128);
  while (std::atomic_ref(*number).load() == 0) std::this_thread::yield();
  // A gather's first part is the last one in memory; a border's second slot has its first call.
  const size_t slot = 4096 + 4096;
  std::byte& word = passes ? bytes[4096 + (2 + 1) * slot + 100] : bytes.back();
  EXPECT_NE(word, std::byte{0});
  word = std::byte{9};
  const auto own = made(0, std::move(*memory));
  EXPECT_FALSE(send(*own));
  other.join();
  EXPECT_EQ(groups[0]->why(), "rank 1: its part of exchange 1 is not what it sent");
}

TEST(SharedRanks, AWordThatChangesInMemoryFailsTheGroupWithItsRank) {
  expect_named_in_memory(false);
  expect_named_in_memory(true);
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
      auto made = connect_processes(*own, transport, {.part_bytes = 4096, .returned_bytes = 4096});
      ASSERT_TRUE(made.has_value());
      uint32_t word = 0;
      const auto rows = std::as_writable_bytes(std::span(&word, 1));
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        made->rank.reset();
        return own.reset();  // without an end, as if it were killed
      }
      EXPECT_FALSE(made->rank->pass(rank == 0 ? 2 : 1, rank, rows));
    });
    // Rank 2 has it from rank 0.
    const std::string words = "rank 1 at 127.0.0.1:";
    for (const size_t rank : {0, 2}) {
      EXPECT_NE(groups[rank]->why().find(words), std::string::npos) << groups[rank]->why();
    }
    EXPECT_LT(Clock::now() - begun, std::chrono::seconds(5));
  }
}

// A stage that waits for rows, and rank 0, which ends the group meanwhile.
TEST(StageRanks, AnOrderlyEndEndsWhatWaits) {
  for (const char* const transport : {"tcp", "shm"}) {
    const auto groups = group_of(2);
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
    EXPECT_LT(Clock::now() - begun, std::chrono::seconds(5));
    for (const auto& group : groups) EXPECT_EQ(group->why(), "") << transport;
  }
}

// Whoever has another state than most is named, on all ranks.
TEST(ProcessRanks, ARankWithAnotherStateFailsTheGroupWithItsName) {
  for (const char* const transport : {"tcp", "shm"}) {
    for (const auto& [size, odd, named] : {std::tuple(2, 0, 1), {2, 1, 1}, {3, 2, 2}, {3, 0, 0}}) {
      const auto groups = group_of(size);
      on_each(size, [&, odd = odd](int32_t rank) {
        const auto own = connect(*groups[static_cast<size_t>(rank)], transport);
        for (int step = 0; step < 3; ++step) {
          *own->state() = static_cast<uint64_t>(step == 2 && rank == odd ? 77 : step);
          EXPECT_EQ(own->all_gather({}).empty(), step == 2) << transport;
        }
      });
      const std::string words = "rank " + std::to_string(named) + ": what it computed before";
      for (const auto& group : groups) {
        EXPECT_NE(group->why().find(words), std::string::npos) << transport << group->why();
      }
    }
  }
}

// A rank that sleeps on another's part wakes when the group has failed.
TEST(SharedRanks, AFollowerThatIsGoneFailsAllWithItsName) {
  auto groups = group_of(3);
  const auto begun = Clock::now();
  on_each(3, [&](int32_t rank) {
    const auto own = connect(*groups[static_cast<size_t>(rank)], "shm");
    if (rank == 1) return groups[1].reset();  // without an end, as if it were killed
    const uint32_t part = 0;
    EXPECT_TRUE(own->all_gather(std::as_bytes(std::span(&part, 1))).empty());
  });
  EXPECT_NE(groups[0]->why().find("rank 1 at 127.0.0.1:"), std::string::npos) << groups[0]->why();
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(5));
}

TEST(RankGroup, AFollowerThatIsGoneFailsAllWithItsName) {
  auto groups = group_of(3);
  const auto begun = Clock::now();
  groups[1].reset();  // without an end, as if it were killed
  std::atomic<bool> has_parts = false;
  std::thread waiting([&] {
    const uint32_t part = 1;
    has_parts =
        !make_stream_rank(*groups[2])->all_gather(std::as_bytes(std::span(&part, 1))).empty();
  });
  const uint32_t part = 0;
  EXPECT_TRUE(make_stream_rank(*groups[0])->all_gather(std::as_bytes(std::span(&part, 1))).empty());
  EXPECT_NE(groups[0]->why().find("rank 1 at 127.0.0.1:"), std::string::npos) << groups[0]->why();
  groups[0].reset();
  waiting.join();
  EXPECT_FALSE(has_parts);
  EXPECT_NE(groups[2]->why().find("rank 0 at 127.0.0.1:"), std::string::npos) << groups[2]->why();
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(4));
}

TEST(RankGroup, AnOrderlyEndIsNoFailure) {
  auto groups = group_of(2);
  std::byte byte{};
  std::thread follower([&] { EXPECT_FALSE(groups[1]->receive_next(std::span(&byte, 1))); });
  groups[0]->end();
  follower.join();
  EXPECT_TRUE(groups[1]->has_ended());
  EXPECT_EQ(groups[1]->why(), "");
}

TEST(RankGroup, AllHaveTheFirstReason) {
  auto groups = group_of(2);
  groups[0]->fail("one");
  groups[0]->fail("two");
  EXPECT_EQ(groups[0]->why(), "one");
  std::byte byte{};
  EXPECT_FALSE(groups[1]->receive_next(std::span(&byte, 1)));
  EXPECT_NE(groups[1]->why().find(": one"), std::string::npos) << groups[1]->why();
}

TEST(RankGroup, WhoDoesNotBelongIsRefusedAndTheOthersStillMeet) {
  const uint16_t port = free_port();
  const auto lead =
      std::async(std::launch::async, [&] { return RankGroup::meet(options(0, 2, port)); });
  const auto refusal = [&](auto change) {
    RankGroupOptions own = options(1, 2, port);
    change(own);
    const Met met = RankGroup::meet(own);
    return met ? "met" : met.error().message;
  };
  EXPECT_NE(refusal([](auto& own) { own.secret = "another secret here"; }).find("--worker-secret"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& own) { own.build = "build 2"; }).find("rank 1 is build 2"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& own) { own.size = 3; }).find("--nnodes is 2 here, 3 there"),
            std::string::npos);
  // A stranger that says nothing costs a handshake's time.
  const auto silent = GroupSocket::dial("127.0.0.1", port, Clock::now() + std::chrono::seconds(5));
  ASSERT_TRUE(silent.has_value());
  const Met met = RankGroup::meet(options(1, 2, port));
  EXPECT_TRUE(met.has_value()) << met.error().message;
}

TEST(RankGroup, RanksThatStayAwayAreNamed) {
  const uint16_t port = free_port();
  RankGroupOptions lead = options(0, 3, port);
  lead.init_timeout_s = 2;
  RankGroupOptions follower = options(2, 3, port);
  const std::vector<Met> met = meet({lead, follower});
  ASSERT_FALSE(met[0].has_value());
  EXPECT_EQ(met[0].error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(met[0].error().message.find("missing after 2 s (--rank-init-timeout): rank 1"),
            std::string::npos)
      << met[0].error().message;
  RankGroupOptions alone = options(1, 2, free_port());
  alone.init_timeout_s = 1;
  const Met none = RankGroup::meet(alone);
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message.find("rank 0 does not answer at 127.0.0.1:"), std::string::npos);
}

// Node 0 is a program like this one, but what it says is read as if it were not.
TEST(NodeTexts, OfOtherShapesAreRefused) {
  const Config config;
  for (const char* text : {"", "[]", "{}", R"({"knobs":{},"plan":7})", R"({"knobs":[],"plan":""})",
                           R"({"knobs":"a","plan":""})"}) {
    EXPECT_EQ(read_settings(text, config).error().code, ErrorCode::kDataLoss) << text;
  }
  for (const char* value : {"16", "null", "[]", R"("1\n2")"}) {
    const std::string text = std::string(R"({"plan":"","knobs":{"activation-bits":)") + value + "}}";
    const Error error = read_settings(text, config).error();
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << text;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << text;
    EXPECT_TRUE(error.message.starts_with("--activation-bits: found ")) << error.message;
  }
  for (const char* text : {"", "[1]", R"({"num_blocks":[1]})", R"({"max_model_len":8})",
                           R"({"max_model_len":"8","num_blocks":[1]})",
                           R"({"max_model_len":0,"num_blocks":[1]})",
                           R"({"max_model_len":8,"num_blocks":7})",
                           R"({"max_model_len":8,"num_blocks":[-1]})",
                           R"({"max_model_len":8,"num_blocks":["a"]})",
                           R"({"max_model_len":8,"num_blocks":[4294967296]})"}) {
    EXPECT_EQ(read_shared_plan(text).error().code, ErrorCode::kDataLoss) << text;
  }
  const auto plan = read_shared_plan(R"({"max_model_len":8,"num_blocks":[1,20]})");
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->max_model_len, 8);
  EXPECT_EQ(plan->num_blocks, (std::vector<int32_t>{1, 20}));
  for (const char* text : {"", "{}", R"({"fingerprint":7,"part_content":1})",
                           R"({"fingerprint":"a","part_content":-1})"}) {
    EXPECT_EQ(read_loaded_model(text).error().code, ErrorCode::kDataLoss) << text;
  }
}

}  // namespace
}  // namespace sluice
