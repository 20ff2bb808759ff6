// SPDX-License-Identifier: Apache-2.0
// Random episodes of scheduler and KV manager together. SLUICE_SIM_STEPS sets the number of steps,
// SLUICE_SIM_SEED runs a single episode.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/scheduler/fake_engine.h"

namespace sluice {
namespace {

constexpr int32_t kStepsPerEpisode = 400;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

TEST(SchedulerSim, EveryRequestEndsWithItsOwnTokensWhateverHappens) {
  const uint64_t only_seed = from_environment("SLUICE_SIM_SEED", 0);
  const uint64_t num_steps = from_environment("SLUICE_SIM_STEPS", 1'000'000);
  EpisodeStats stats;
  int num_failures = 0;
  for (uint64_t seed = 1; stats.num_steps < num_steps && num_failures < 3; ++seed) {
    FakeEngine engine(only_seed != 0 ? only_seed : seed);
    const std::string wrong = engine.run(kStepsPerEpisode, stats);
    EXPECT_EQ(wrong, "") << "re-run with SLUICE_SIM_SEED; " << engine.describe();
    num_failures += !wrong.empty();
    if (only_seed != 0) return;
  }
  // The rates ensure that every case occurs.
  EXPECT_GT(stats.num_finished, num_steps / 100);
  EXPECT_GT(stats.num_preempted, num_steps / 1000);
  EXPECT_GT(stats.num_hit_tokens, num_steps / 100);
  EXPECT_GT(stats.num_copied_tokens, num_steps / 1000);
  EXPECT_GT(stats.num_aborted_waiting, num_steps / 10'000);
  EXPECT_GT(stats.num_aborted_idle, num_steps / 100'000);
  EXPECT_GT(stats.num_aborted_in_flight, num_steps / 10'000);
  EXPECT_GT(stats.num_rejected, num_steps / 1000);
  EXPECT_GT(stats.num_expired, num_steps / 10'000);
  EXPECT_GT(stats.num_resumed, num_steps / 1000);
  EXPECT_GT(stats.num_restored, num_steps / 1000);
  EXPECT_GT(stats.num_restored_states, num_steps / 10'000);
  EXPECT_GT(stats.num_taken_turns, num_steps / 1000);
  EXPECT_GT(stats.num_drafted_tokens, num_steps / 20);
  EXPECT_GT(stats.num_accepted_tokens, num_steps / 40);
  EXPECT_GT(stats.num_following_chunks, num_steps / 1000);
  EXPECT_GT(stats.num_starved, num_steps / 100'000);
  RecordProperty("requests", std::to_string(stats.num_requests));
  RecordProperty("finished", std::to_string(stats.num_finished));
  RecordProperty("preempted", std::to_string(stats.num_preempted));
  RecordProperty("starved", std::to_string(stats.num_starved));
  RecordProperty("expired", std::to_string(stats.num_expired));
}

}  // namespace
}  // namespace sluice
