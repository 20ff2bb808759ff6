// SPDX-License-Identifier: Apache-2.0
// The host side of NCCL between processes, which threads play, against a library with its interface
// (tests/support/fake_nccl_nodes.cpp): gathers, and the end of all ranks whatever one of them does.
#include "engine/parallel/nccl_node.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/engine/rank_group_rig.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/fake_nccl_nodes.h"

namespace sluice {
namespace {

using testing::FakeNodeFaults;
using testing::group_of;
using testing::on_each;
using Clock = std::chrono::steady_clock;

constexpr size_t kPart = size_t{200} << 10;  // bytes of a part, at most
constexpr auto kLong = std::chrono::seconds(60);

const NcclNodeOptions kQuick = {.library = SLUICE_FAKE_NCCL_NODES,
                                .within = std::chrono::seconds(1)};

void set_faults(const FakeNodeFaults& faults) {
  testing::set_fake_nodes(SLUICE_FAKE_NCCL_NODES, faults);
}

// A rank's end, or why it has none. Its memory outlives it: after a gather that is given up the
// library may still use it.
struct End {
  std::vector<std::byte> part = std::vector<std::byte>(kPart);
  std::vector<std::byte> received;
  std::unique_ptr<testing::FakeNcclDevice> memory = {};
  std::unique_ptr<Communicator> rank = {};
  std::string error = {};
};

End connect(RankGroup& group,
            const NcclNodeOptions& options = {.library = SLUICE_FAKE_NCCL_NODES, .within = kLong},
            std::string device = "cuda:a",
            int32_t gpu = -1) {
  const auto open = open_nccl_node(options);
  CHECK(open.has_value());
  End end = {.received = std::vector<std::byte>(static_cast<size_t>(group.size()) * kPart)};
  const kernels::DeviceId id = {static_cast<std::byte>(gpu < 0 ? group.rank() : gpu)};
  end.memory = std::make_unique<testing::FakeNcclDevice>(id);
  auto made = (*open)(
      group, {.received = end.received, .name = std::move(device), .memory = end.memory.get()});
  if (made) {
    end.rank = std::move(*made);
  } else {
    end.error = made.error().message;
  }
  return end;
}

// Runs body(rank's end) on connected ranks, one thread each, and returns their groups.
template <typename Body>
std::vector<std::unique_ptr<RankGroup>> on_ranks(int32_t size,
                                                 const FakeNodeFaults& faults,
                                                 const Body& body) {
  set_faults(faults);
  auto groups = group_of(size);
  on_each(size, [&](int32_t rank) {
    End own = connect(*groups[static_cast<size_t>(rank)]);
    ASSERT_NE(own.rank, nullptr) << own.error;
    body(own);
  });
  return groups;
}

// Gathers parts of different sizes; returns whether each rank's part is what it sent.
bool gathers(End& own, int rounds) {
  constexpr std::array kSizes = {size_t{1}, size_t{4096}, kPart, size_t{77}};
  for (int round = 0; round < rounds; ++round) {
    const size_t bytes = kSizes[static_cast<size_t>(round) % kSizes.size()];
    const auto byte_of = [&](int32_t rank) { return static_cast<std::byte>(rank * 50 + round); };
    std::ranges::fill(own.part, byte_of(own.rank->rank()));
    const auto parts = own.rank->all_gather(std::span(own.part).first(bytes));
    if (parts.size() != static_cast<size_t>(own.rank->size())) return false;
    for (int32_t rank = 0; rank < own.rank->size(); ++rank) {
      const std::byte* const at = parts[static_cast<size_t>(rank)];
      if (at[0] != byte_of(rank) || at[bytes - 1] != byte_of(rank)) return false;
    }
  }
  return true;
}

bool fails(End& own) {
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (Clock::now() < end) {
    if (own.rank->all_gather(std::span(own.part).first(1)).empty()) return own.rank->has_failed();
  }
  return false;
}

TEST(NcclNode, EveryRankSeesEveryPartInOrderOfRank) {
  for (const int32_t size : {2, 4, 8}) {
    const auto groups = on_ranks(size, {}, [](End& own) { EXPECT_TRUE(gathers(own, 12)); });
    for (const auto& group : groups) EXPECT_FALSE(group->has_failed()) << group->why();
  }
}

// None waits for what the lost one does not send, and all name it.
TEST(NcclNode, ARankThatIsGoneEndsTheGathersOfAll) {
  set_faults({});
  auto groups = group_of(3);
  const auto begun = Clock::now();
  std::latch gathered(3);
  on_each(3, [&](int32_t rank) {
    End own = connect(*groups[static_cast<size_t>(rank)]);
    EXPECT_TRUE(own.rank != nullptr && gathers(own, 3)) << own.error;
    gathered.arrive_and_wait();
    if (rank == 2) {
      groups[2]->fail("a reason of its own");
    } else {
      EXPECT_TRUE(own.rank != nullptr && fails(own));
    }
  });
  for (const auto& group : groups) {
    EXPECT_NE(group->why().find("a reason of its own"), std::string::npos) << group->why();
  }
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(10));
}

// An end in order while a gather waits for a rank that makes none.
TEST(NcclNode, TheEndOfTheGroupIsTheEndOfAGather) {
  set_faults({});
  auto pair = group_of(2);
  on_each(2, [&](int32_t rank) {
    const End own = connect(*pair[static_cast<size_t>(rank)]);
    ASSERT_NE(own.rank, nullptr) << own.error;
    if (rank == 0) {
      pair[0]->end();
    } else {
      EXPECT_TRUE(own.rank->all_gather(own.part).empty());
      EXPECT_TRUE(pair[1]->has_ended());
    }
  });
}

TEST(NcclNode, ErrorsOfCallsAndErrorsThatNoCallReturnsEndAllRanks) {
  const FakeNodeFaults call = {.rank = 1, .bad_call = 3};
  const FakeNodeFaults gather = {.rank = 1, .bad_gather = 3, .abort_ms = 50};
  for (const FakeNodeFaults& faults : {call, gather}) {
    const auto groups = on_ranks(3, faults, [](End& own) { EXPECT_TRUE(fails(own)); });
    for (const auto& group : groups) {
      EXPECT_NE(group->why().find("rank 1: NCCL: internal error: of this test"), std::string::npos)
          << group->why();
    }
  }
}

TEST(NcclNode, AnyThreadMayFailARankWhileItGathers) {
  for (int i = 0; i < 8; ++i) {
    on_ranks(2, {}, [i](End& own) {
      std::thread watcher([&own, i] {
        std::this_thread::sleep_for(std::chrono::milliseconds(i));
        if (own.rank->rank() == 0) own.rank->fail();
      });
      EXPECT_TRUE(fails(own));
      watcher.join();
    });
  }
}

// It waits for the device, which waits for a rank that is gone.
TEST(NcclNode, ACallThatOnlyAnAbortEndsIsAborted) {
  std::latch calls(1);
  on_ranks(2, {.rank = 1, .endless_call = 1}, [&](End& own) {
    if (own.rank->rank() == 0) {
      calls.wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return own.rank->fail();
    }
    calls.count_down();
    EXPECT_TRUE(own.rank->all_gather(own.part).empty());
  });
}

// Whoever frees a rank's memory after the rank frees what its device has done with.
TEST(NcclNode, NothingUsesItsMemoryWhenARankIsGone) {
  on_ranks(2, {.rank = 1, .abort_ms = 100}, [](End& own) {
    if (own.rank->rank() == 0) return own.rank->fail();
    EXPECT_TRUE(own.rank->all_gather(own.part).empty());
    own.rank.reset();
    constexpr std::byte kOther{7};
    std::ranges::fill(own.received, kOther);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_TRUE(std::ranges::all_of(own.received, [](std::byte at) { return at == kOther; }));
  });
}

TEST(NcclNodeDeathTest, AnAbortThatNeverReturnsEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto never_ends = [] {
    set_faults({.rank = 1, .abort_ms = 60'000});
    auto pair = group_of(2);
    on_each(2, [&](int32_t rank) {
      const End own = connect(*pair[static_cast<size_t>(rank)],
                              {.library = SLUICE_FAKE_NCCL_NODES,
                               .within = kLong,
                               .abort_within = std::chrono::seconds(1)});
      if (own.rank) own.rank->fail();
    });
  };
  EXPECT_EXIT(never_ends(), ::testing::ExitedWithCode(1), "nccl_abort_stuck.*rank.*1");
}

// Why ranks that have met are not connected, which all of them say.
void expect_unconnected(int32_t size,
                        const FakeNodeFaults& faults,
                        const std::vector<std::string>& devices,
                        const std::string& words) {
  set_faults(faults);
  auto groups = group_of(size);
  on_each(size, [&](int32_t rank) {
    const auto at = static_cast<size_t>(rank);
    const End own = connect(*groups[at], kQuick, devices[at % devices.size()]);
    EXPECT_EQ(own.rank, nullptr);
    EXPECT_NE(own.error.find(words), std::string::npos) << own.error;
  });
}

TEST(NcclNode, ARankThatDoesNotJoinIsNamedAfterTheTime) {
  expect_unconnected(2,
                     {.rank = 1, .stays_away = 1},
                     {"cuda:a"},
                     "rank 0: NCCL has not connected the GPUs within 1 s (--rank-init-timeout); it "
                     "still connects rank 0, rank 1 at 127.0.0.1:");
}

// Rank 2 is held up in front of NCCL.
TEST(NcclNode, ARankThatDoesNotBeginIsNamedAfterTheTime) {
  set_faults({});
  auto groups = group_of(3);
  on_each(3, [&](int32_t rank) {
    RankGroup& group = *groups[static_cast<size_t>(rank)];
    if (rank == 2) {
      // It says what it has, and takes the id, but joins no group.
      std::array<std::byte, 152> facts{};
      const int32_t version = 23007;
      std::memcpy(facts.data(), &version, sizeof(version));
      std::memcpy(facts.data() + sizeof(version), "cuda:a", 6);
      facts[132] = std::byte{2};  // of its GPU's UUID
      EXPECT_TRUE(group.send(0, facts));
      kernels::NcclId id;
      EXPECT_TRUE(group.receive(0, std::as_writable_bytes(std::span(&id, 1))));
      std::byte byte{};
      EXPECT_FALSE(group.receive_next({&byte, 1}));
      return;
    }
    const End own = connect(group, kQuick);
    EXPECT_NE(own.error.find("; it has not begun on rank 2 at 127.0.0.1:"), std::string::npos)
        << own.error;
  });
}

TEST(NcclNode, WhatNcclRefusesToMakeIsSaidByAll) {
  expect_unconnected(2,
                     {.rank = 1, .refuses_to_make = 1},
                     {"cuda:a"},
                     "rank 1: NCCL cannot connect: internal error: of this test");
}

TEST(NcclNode, OtherVersionsAndOtherDevicesAreRefusedByName) {
  expect_unconnected(2, {.versions = 1}, {"cuda:a"}, ": found NCCL 2.30.");
  expect_unconnected(3, {}, {"cuda:a", "cuda:a", "cuda:b"}, ": found cuda:b, rank 0 has cuda:a");
}

// Ranks 0 and 1 have GPUs of their own, and rank 2 has rank 1's: NCCL would refuse it with no name.
TEST(NcclNode, AGpuOfTwoRanksIsRefusedByNameUnlessAllMayShare) {
  constexpr const char* kMayShare = "NCCL_MULTI_RANK_GPU_ENABLE";
  const auto run = [&](bool is_refused) {
    set_faults({});
    auto groups = group_of(3);
    on_each(3, [&](int32_t rank) {
      const End own =
          connect(*groups[static_cast<size_t>(rank)], kQuick, "cuda:a", std::min(rank, 1));
      if (!is_refused) {
        EXPECT_NE(own.rank, nullptr) << own.error;
        return;
      }
      EXPECT_EQ(own.rank, nullptr);
      for (const char* const words :
           {"rank 2 at 127.0.0.1:",
            ": found GPU 01000000-0000-0000-0000-000000000000, which rank "
            "1 at 127.0.0.1:",
            "CUDA_VISIBLE_DEVICES",
            "NCCL_MULTI_RANK_GPU_ENABLE=1"}) {
        EXPECT_NE(own.error.find(words), std::string::npos) << own.error;
      }
    });
  };
  unsetenv(kMayShare);
  run(true);
  setenv(kMayShare, "0", 1);
  run(true);
  setenv(kMayShare, "1", 1);
  run(false);
  unsetenv(kMayShare);
}

TEST(NcclNode, AMissingLibraryIsNamed) {
  const auto none = open_nccl_node({.library = "libno-such-nccl.so.9"});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(none.error().message.find("libno-such-nccl.so.9"), std::string::npos);
}

// The port of NCCL's monitor is one for all engines of a machine.
TEST(NcclNode, TheMonitorIsOffUnlessTheUserHasASettingOfIt) {
  const auto value = [](const char* name) {
    const char* const found = std::getenv(name);
    return std::string(found == nullptr ? "unset" : found);
  };
  unsetenv("NCCL_RAS_ENABLE");
  setenv("NCCL_RAS_ADDR", "localhost:1", 1);
  prepare_nccl_environment();
  EXPECT_EQ(value("NCCL_RAS_ENABLE"), "unset");
  unsetenv("NCCL_RAS_ADDR");
  prepare_nccl_environment();
  EXPECT_EQ(value("NCCL_RAS_ENABLE"), "0");
  setenv("NCCL_RAS_ENABLE", "1", 1);
  prepare_nccl_environment();
  EXPECT_EQ(value("NCCL_RAS_ENABLE"), "1");
  unsetenv("NCCL_RAS_ENABLE");
}

}  // namespace
}  // namespace sluice
