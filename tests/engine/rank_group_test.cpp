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
#include "tests/engine/rank_group_rig.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::connect;
using testing::free_port;
using testing::group_of;
using testing::kMostWords;
using testing::meet;
using testing::Met;
using testing::on_each;
using testing::rank_options;
using testing::wrong_words;
using Clock = std::chrono::steady_clock;

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
    const auto own = rank == 1 ? make_stream_rank(group, group.all()) : connect(group, "auto");
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
  EXPECT_TRUE(make_stream_rank(*groups[0], groups[0]->all())
                  ->all_gather(std::as_bytes(std::span(&part, 1)))
                  .empty());
  EXPECT_EQ(groups[0]->why(), "rank 1: its part of exchange 1 is not what it sent");
}

// Rank 1 has the memory under its rank, and changes its part before rank 0 reads it.
void expect_named_in_memory(bool passes) {
  constexpr ExchangeSizes kSizes = {
      .part_bytes = 4096, .num_stages = 2, .passed_bytes = 4096, .returned_bytes = 4096};
  const auto groups = group_of(2);
  auto memory = SharedSegment::make(static_cast<size_t>(
      passes ? shared_stage_bytes(kSizes) : shared_rank_bytes(2, kSizes.part_bytes)));
  ASSERT_TRUE(memory.has_value());
  const std::span<std::byte> bytes = (*memory)->bytes();
  const auto soon = Clock::now() + std::chrono::seconds(60);
  const auto door = SharedSegment::knock((*memory)->ticket());
  ASSERT_TRUE(door.has_value() && (*memory)->hand_over(soon).has_value());
  auto taken = SharedSegment::take(**door, (*memory)->ticket(), soon);
  ASSERT_TRUE(taken.has_value());
  const auto made = [&](size_t rank, auto segment) {
    RankGroup& group = *groups[rank];
    return passes ? make_shared_stage(group, group.all(), std::move(segment), kSizes)
                  : make_shared_rank(group, group.all(), std::move(segment), kSizes.part_bytes);
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
  EXPECT_EQ(groups[0]->why().find("silent"), std::string::npos) << groups[0]->why();
  EXPECT_LT(Clock::now() - begun, RankGroup::kExchange);
}

TEST(RankGroup, AFollowerThatIsGoneFailsAllWithItsName) {
  auto groups = group_of(3);
  const auto begun = Clock::now();
  groups[1].reset();  // without an end, as if it were killed
  std::atomic<bool> has_parts = false;
  std::thread waiting([&] {
    const uint32_t part = 1;
    has_parts = !make_stream_rank(*groups[2], groups[2]->all())
                     ->all_gather(std::as_bytes(std::span(&part, 1)))
                     .empty();
  });
  const uint32_t part = 0;
  EXPECT_TRUE(make_stream_rank(*groups[0], groups[0]->all())
                  ->all_gather(std::as_bytes(std::span(&part, 1)))
                  .empty());
  EXPECT_NE(groups[0]->why().find("rank 1 at 127.0.0.1:"), std::string::npos) << groups[0]->why();
  groups[0].reset();
  waiting.join();
  EXPECT_FALSE(has_parts);
  EXPECT_NE(groups[2]->why().find("rank 0 at 127.0.0.1:"), std::string::npos) << groups[2]->why();
  EXPECT_EQ(groups[2]->why().find("silent"), std::string::npos) << groups[2]->why();
  EXPECT_LT(Clock::now() - begun, RankGroup::kExchange);
}

TEST(RankGroup, AnOrderlyEndIsNoFailure) {
  auto groups = group_of(2);
  std::byte byte{};
  std::thread follower([&] { EXPECT_FALSE(groups[1]->receive_next(std::span(&byte, 1))); });
  groups[0]->end();
  follower.join();
  EXPECT_TRUE(groups[1]->has_ended());
  EXPECT_EQ(groups[1]->why(), "");
  groups.pop_back();  // rank 0 waits for it
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
      std::async(std::launch::async, [&] { return RankGroup::meet(rank_options(0, 2, port)); });
  const auto refusal = [&](auto change) {
    RankGroupOptions own = rank_options(1, 2, port);
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
  const auto silent = GroupSocket::dial("127.0.0.1", port, Clock::now() + std::chrono::seconds(60));
  ASSERT_TRUE(silent.has_value());
  const Met met = RankGroup::meet(rank_options(1, 2, port));
  EXPECT_TRUE(met.has_value()) << met.error().message;
}

// A pod's name may not be known yet, and a machine's own often means its loopback address.
TEST(GroupListener, ANameMeansAllInterfacesAndAnAddressItself) {
  const auto soon = Clock::now() + std::chrono::seconds(60);
  const auto named = GroupListener::open("a-name-that-is-not-known.invalid", 0);
  ASSERT_TRUE(named.has_value()) << named.error().message;
  const std::string port = ":" + std::to_string((*named)->port());
  EXPECT_TRUE((*named)->name() == "[::]" + port || (*named)->name() == "0.0.0.0" + port)
      << (*named)->name();
  const auto dialled = GroupSocket::dial("127.0.0.1", (*named)->port(), soon);
  ASSERT_TRUE(dialled.has_value()) << dialled.error().message;
  const auto accepted = (*named)->accept(soon);
  ASSERT_NE(accepted, nullptr);
  EXPECT_TRUE(accepted->peer().starts_with("127.0.0.1:")) << accepted->peer();
  for (const char* const host : {"127.0.0.2", "localhost"}) {
    const auto one = GroupListener::open(host, 0);
    ASSERT_TRUE(one.has_value()) << one.error().message;
    EXPECT_FALSE(GroupSocket::dial("127.0.0.3", (*one)->port(), soon).has_value()) << host;
  }
  const auto elsewhere = GroupListener::open("192.0.2.1", 0);
  ASSERT_FALSE(elsewhere.has_value());
  EXPECT_EQ(elsewhere.error().message.substr(0, 29), "cannot listen at 192.0.2.1:0:");
}

TEST(RankGroup, WhoWasRefusedLastIsNamedAtTheEnd) {
  const uint16_t port = free_port();
  RankGroupOptions lead = rank_options(0, 2, port);
  lead.init_timeout_s = 4;
  RankGroupOptions follower = rank_options(1, 2, port);
  follower.build = "build 2";
  const std::vector<Met> met = meet({lead, follower});
  ASSERT_FALSE(met[0].has_value());
  const std::string& why = met[0].error().message;
  EXPECT_NE(why.find(": rank 1; refused: 127.0.0.1:"), std::string::npos) << why;
  EXPECT_NE(why.find(", it is build 1, rank 1 is build 2"), std::string::npos) << why;
}

TEST(RankGroup, RanksThatStayAwayAreNamed) {
  const uint16_t port = free_port();
  RankGroupOptions lead = rank_options(0, 3, port);
  lead.init_timeout_s = 2;
  RankGroupOptions follower = rank_options(2, 3, port);
  const std::vector<Met> met = meet({lead, follower});
  ASSERT_FALSE(met[0].has_value());
  EXPECT_EQ(met[0].error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(met[0].error().message.find("missing after 2 s (--rank-init-timeout): rank 1"),
            std::string::npos)
      << met[0].error().message;
  // The one that has come learns it, too.
  ASSERT_TRUE(met[1].has_value());
  std::byte byte{};
  EXPECT_FALSE((*met[1])->receive_next(std::span(&byte, 1)));
  EXPECT_NE((*met[1])->why().find("missing after 2 s"), std::string::npos) << (*met[1])->why();
  RankGroupOptions alone = rank_options(1, 2, free_port());
  alone.init_timeout_s = 1;
  const Met none = RankGroup::meet(alone);
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message.find("rank 0 does not answer at 127.0.0.1:"), std::string::npos);
  EXPECT_NE(none.error().message.find(" s (--rank-init-timeout): "), std::string::npos);
}

// The time for these is no setting.
TEST(RankGroup, AFollowerThatStaysAwayFromAnotherIsNamedWithoutASetting) {
  const uint16_t port = free_port();
  std::vector<RankGroupOptions> all;
  for (int32_t rank = 0; rank < 3; ++rank) all.push_back(rank_options(rank, 3, port));
  all[2].peer_timeout_s = 1;
  const std::vector<Met> met = meet(all);
  ASSERT_TRUE(met[0].has_value() && met[1].has_value() && met[2].has_value());
  const uint16_t closed = free_port();
  const Expected<void> dialled = (*met[2])->dial_peer(1, {.host = "127.0.0.1", .port = closed});
  ASSERT_FALSE(dialled.has_value());
  EXPECT_EQ(dialled.error().code, ErrorCode::kDeadlineExceeded);
  const std::string words = "rank 2: rank 1 does not answer at 127.0.0.1:" +
                            std::to_string(closed) + " within 1 s: ";
  EXPECT_EQ(dialled.error().message.substr(0, words.size()), words);
  (*met[0])->end();
}

// While others are awaited: whose silence would end the ranks that have come, and whose place a
// process takes that starts again.
TEST(RankGroup, ARankThatStartsAgainBeforeTheLastTakesItsPlace) {
  const uint16_t port = free_port();
  auto lead = std::async(std::launch::async,
                         [&] { return RankGroup::meet(rank_options(0, 3, port)); });
  Met first = RankGroup::meet(rank_options(1, 3, port));
  ASSERT_TRUE(first.has_value());
  first->reset();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  Met second = RankGroup::meet(rank_options(1, 3, port));
  while (!second.has_value() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    second = RankGroup::meet(rank_options(1, 3, port));
  }
  ASSERT_TRUE(second.has_value()) << second.error().message;
  if (testing::is_full()) std::this_thread::sleep_for(std::chrono::seconds(7));
  const Met last = RankGroup::meet(rank_options(2, 3, port));
  ASSERT_TRUE(last.has_value()) << last.error().message;
  const Met leads = lead.get();
  ASSERT_TRUE(leads.has_value()) << leads.error().message;
  EXPECT_FALSE((*second)->has_failed()) << (*second)->why();
  (*leads)->end();
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
                           R"({"max_model_len":8,"num_blocks":[1]})",
                           R"({"max_model_len":8,"num_blocks":[1],"on_device":1})",
                           R"({"max_model_len":"8","num_blocks":[1],"on_device":true})",
                           R"({"max_model_len":0,"num_blocks":[1],"on_device":true})",
                           R"({"max_model_len":8,"num_blocks":7,"on_device":true})",
                           R"({"max_model_len":8,"num_blocks":[-1],"on_device":true})",
                           R"({"max_model_len":8,"num_blocks":["a"],"on_device":true})",
                           R"({"max_model_len":8,"num_blocks":[4294967296],"on_device":true})"}) {
    EXPECT_EQ(read_shared_plan(text).error().code, ErrorCode::kDataLoss) << text;
  }
  const auto plan =
      read_shared_plan(R"({"max_model_len":8,"num_blocks":[1,20],"on_device":true})");
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->max_model_len, 8);
  EXPECT_TRUE(plan->on_device);
  EXPECT_EQ(plan->num_blocks, (std::vector<int32_t>{1, 20}));
  for (const char* text : {"",
                           "{}",
                           R"({"host":"a"})",
                           R"({"host":1,"port":1})",
                           R"({"host":"a","port":"1"})",
                           R"({"host":"a","port":65536})",
                           R"({"host":"a","port":-1})"}) {
    EXPECT_EQ(read_address(text).error().code, ErrorCode::kDataLoss) << text;
  }
  EXPECT_EQ(read_address(R"({"host":"a","port":65535})")->port, 65535);
  for (const char* text : {"", "{}", R"({"fingerprint":7,"part_content":1})",
                           R"({"fingerprint":"a","part_content":-1})"}) {
    EXPECT_EQ(read_loaded_model(text).error().code, ErrorCode::kDataLoss) << text;
  }
}

}  // namespace
}  // namespace sluice
