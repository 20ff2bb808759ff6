// SPDX-License-Identifier: Apache-2.0
// Checks that the shim sees bugs between devices that write each other's memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/kernels/cuda/peer_ranks.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/planted_peers.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {
namespace {

constexpr uint32_t kExchanges = 4;

// Whole numbers and zeros of either sign, whose differences have one too.
std::vector<float> part_of(int32_t rank, uint32_t number) {
  Random random(10 * number + static_cast<uint64_t>(rank));
  std::vector<float> part(PeersShape::kWords);
  for (float& value : part) value = static_cast<float>(random.below(1000)) - 500.0F;
  part[number] = -0.0F;
  part[70 + number] = rank == 0 ? -0.0F : 0.0F;
  return part;
}

bool is_right(const std::vector<float>& found, uint32_t number) {
  const std::vector<float> a = part_of(0, number);
  const std::vector<float> b = part_of(1, number);
  std::vector<float> want(a.size());
  std::ranges::transform(a, b, want.begin(), [](float x, float y) { return x - y; });
  return same(found, want);
}

// Returns what both ranks' schedules report of a bug, "wrong bits" and "stopped" too.
std::string text_of(PeersBug bug, uint64_t seed, simt::Mode mode) {
  PeerRanks ranks(2);
  if (bug == PeersBug::kOneBlockMore) ranks.set_limit_ns(50'000'000);
  std::array<bool, 2> are_right = {true, true};
  std::string text = ranks.run(seed, mode, [&](int32_t rank) {
    for (uint32_t number = 1; number <= kExchanges; ++number) {
      const std::vector<float> got =
          run_peers(bug, ranks.windows(rank), number, part_of(rank, number));
      if (!is_right(got, number)) are_right[static_cast<size_t>(rank)] = false;
    }
  });
  if (!are_right[0] || !are_right[1]) text += "wrong bits\n";
  if (ranks.stop() != 0) text += "stopped\n";
  return text;
}

void expect_seen(const char* name, const char* words, PeersBug bug) {
  int plain = 0;
  int race = 0;
  std::string all;
  for (int seed = 0; seed < kPlainSeeds; ++seed) {
    const std::string text = text_of(bug, static_cast<uint64_t>(seed), simt::Mode::kPlain);
    plain += text.empty() ? 0 : 1;
    all += text;
  }
  for (int seed = 0; seed < kRaceSeeds; ++seed) {
    const std::string text = text_of(bug, static_cast<uint64_t>(seed), simt::Mode::kRace);
    race += text.empty() ? 0 : 1;
    all += text;
  }
  std::printf("%-28s plain %2d of %d, race %d of %d\n", name, plain, kPlainSeeds, race, kRaceSeeds);
  EXPECT_EQ(race, kRaceSeeds) << name << ": not caught in every schedule";
  EXPECT_NE(all.find(words), std::string::npos)
      << name << ": caught in other words than '" << words << "':\n"
      << all.substr(0, 2000);
}

TEST(Peers, WithoutABugNothingIsReported) {
  for (int seed = 0; seed < kPlainSeeds; ++seed) {
    ASSERT_EQ(text_of(PeersBug::kNone, static_cast<uint64_t>(seed), simt::Mode::kPlain), "");
  }
  for (int seed = 0; seed < kRaceSeeds; ++seed) {
    ASSERT_EQ(text_of(PeersBug::kNone, static_cast<uint64_t>(seed), simt::Mode::kRace), "");
  }
}

TEST(Peers, EveryPlantedBugIsCaught) {
  using enum PeersBug;
  expect_seen("no release", "race: a read of what another device", kNoRelease);
  expect_seen("told before the barrier", "race: a read of what another", kNoBarrierBeforeTelling);
  expect_seen("read before the barrier", "race: a read of what another", kNoBarrierBehindTheWait);
  expect_seen("no wait", "race: a ", kNoWait);
  // A rank that is far ahead has told that, and then only the bits are wrong.
  expect_seen("reuse one exchange early", "", kOneHalf);
  expect_seen("the launch's own count", "", kCountOfTheLaunch);
  expect_seen("one block more", "stopped", kOneBlockMore);
}

}  // namespace
}  // namespace sluice::kernels::test
