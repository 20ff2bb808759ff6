// SPDX-License-Identifier: Apache-2.0
// How much of a prompt a step computes: shares of tokens and time, thresholds, partial prefills.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/scheduler/scheduler_rig.h"
#include "tests/support/new_request.h"

namespace sluice {
namespace {

TEST_F(SchedulerTest, LongPromptIsChunkedWithoutStarvingDecode) {
  build(64, options());
  ASSERT_TRUE(add(1, 4, 50));
  step();
  ASSERT_TRUE(add(2, 150, 4));
  int32_t prefilled = 0;
  while (prefilled < 150) {
    const SchedulerOutput output = step();
    ASSERT_EQ(output.scheduled.front().id, RequestId{1});  // decodes come first
    ASSERT_EQ(tokens_of(output, 1), 1);
    ASSERT_LE(output.total_tokens, 64);
    ASSERT_EQ(output.num_prefill_tokens, tokens_of(output, 2));
    prefilled += tokens_of(output, 2);
  }
  EXPECT_EQ(prefilled, 150);
  EXPECT_EQ(scheduler_->find(RequestId{2})->num_generated(), 1);
}

TEST_F(SchedulerTest, PromptsThatFellBackTakeAShareOfTheTokensBesideDecodes) {
  SchedulerOptions shared = options();
  shared.max_fallback_share = 0.25;
  build(64, shared);
  const auto add_fallback = [&](uint64_t id, bool has_landed = false) {
    Request request =
        testing::new_request(id, std::vector<TokenId>(60, static_cast<TokenId>(id)), 2);
    request.is_fallback = !has_landed;
    request.num_landed_tokens = has_landed ? 48 : 0;
    return scheduler_->add(std::move(request));
  };
  ASSERT_TRUE(add_fallback(1));
  EXPECT_EQ(step().total_tokens, 60);  // no request decodes
  while (scheduler_->has_work()) step();
  ASSERT_TRUE(add(2, 4, 40));
  step();
  ASSERT_TRUE(add_fallback(3));
  ASSERT_TRUE(add_fallback(4, /*has_landed=*/true));  // its blocks have been evicted since
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step().num_prefill_tokens, 16) << i;
  ASSERT_TRUE(add(5, 40, 1, /*priority=*/-1));
  EXPECT_EQ(step().num_prefill_tokens, 40 + 16);
}

// Costs 10 ms, plus 1 ms per token.
double linear_ms(const SchedulerOutput& output) { return 10.0 + 1.0 * output.total_tokens; }

TEST_F(SchedulerTest, PromptsTakeAShareOfTheTimeBesideDecodes) {
  for (const double share : {0.5, 0.65, 0.75}) {
    SchedulerOptions timed = options();
    timed.max_num_batched_tokens = 256;
    timed.step_target_ms = 1000;
    timed.max_prefill_share = share;
    build(256, timed);
    ASSERT_TRUE(add(1, 8, 200));
    for (int i = 0; i < 50; ++i) {
      const SchedulerOutput output = schedule();
      update(output, linear_ms(output));
    }
    ASSERT_TRUE(add(2, 200, 2));
    const double longest_ms = 11 / (1 - share);
    int num_steps = 0;
    for (; scheduler_->find(RequestId{2}) != nullptr && num_steps < 100; ++num_steps) {
      const SchedulerOutput output = schedule();
      if (num_steps > 3) {  // the model has learned
        EXPECT_LE(linear_ms(output), 1.05 * longest_ms) << share << ", step " << num_steps;
      }
      update(output, linear_ms(output));
    }
    EXPECT_LT(num_steps, 1.4 * 200 / (longest_ms - 11)) << share;  // and the prompt has its share
  }
}

TEST_F(SchedulerTest, WithoutAShareForDecodesTheMillisecondsAloneBoundChunks) {
  SchedulerOptions timed = options();
  timed.max_num_batched_tokens = 256;
  timed.max_prefill_share = 1;
  for (const auto& [target_ms, chunk] : {std::pair{1000.0, 200}, std::pair{1.0, 64}}) {
    timed.step_target_ms = target_ms;
    build(256, timed);
    ASSERT_TRUE(add(1, 8, 200));
    for (int i = 0; i < 20; ++i) {
      const SchedulerOutput output = schedule();
      update(output, linear_ms(output));
    }
    ASSERT_TRUE(add(2, 200, 2));
    EXPECT_EQ(schedule().num_prefill_tokens, chunk) << target_ms;
  }
}

TEST_F(SchedulerTest, ALongPromptLeavesRoomInTheStepForShortOnes) {
  SchedulerOptions limited = options();
  limited.long_prefill_token_threshold = 40;
  build(256, limited);
  ASSERT_TRUE(add(1, 200, 1));
  ASSERT_TRUE(add(2, 20, 1));
  const SchedulerOutput output = step();
  EXPECT_EQ(tokens_of(output, 1), 40);
  EXPECT_EQ(tokens_of(output, 2), 20);
}

TEST_F(SchedulerTest, APromptStartsWhenAnotherIsComputed) {
  SchedulerOptions limited = options();
  limited.long_prefill_token_threshold = 40;
  limited.max_num_partial_prefills = 1;
  limited.max_num_batched_tokens = 256;
  build(256, limited);
  ASSERT_TRUE(add(1, 100, 4));
  ASSERT_TRUE(add(2, 30, 4));   // needs one step alone
  ASSERT_TRUE(add(3, 100, 4));  // would be the second half computed prompt
  ASSERT_TRUE(add(4, 30, 4));   // comes after it
  for (int i = 0; i < 2; ++i) {
    const SchedulerOutput output = step();
    EXPECT_EQ(tokens_of(output, 1), 40);
    EXPECT_EQ(tokens_of(output, 3), 0);
    EXPECT_EQ(tokens_of(output, 4), 0);
    EXPECT_EQ(tokens_of(output, 2), i == 0 ? 30 : 1);
  }
  const SchedulerOutput output = step();
  EXPECT_EQ(tokens_of(output, 1), 20);
  EXPECT_EQ(tokens_of(output, 3), 40);
  EXPECT_EQ(tokens_of(output, 4), 30);
}

TEST_F(SchedulerTest, MillisecondBudgetShortensChunksAndNeverStopsThem) {
  SchedulerOptions timed = options();
  timed.max_num_batched_tokens = 256;
  timed.step_target_ms = 20;
  build(256, timed);
  ASSERT_TRUE(add(1, 250, 2));
  ASSERT_TRUE(add(2, 250, 2));
  int32_t last_chunk = 0;
  for (int i = 0; i < 100 && scheduler_->has_work(); ++i) {
    const SchedulerOutput output = schedule();
    ASSERT_GT(output.total_tokens, 0);
    if (output.num_prefill_tokens > 64) {
      ASSERT_LE(output.predicted_ms, 20.0001);
    }
    if (output.num_prefill_tokens > 0) last_chunk = output.num_prefill_tokens;
    update(output, 5.0 * output.total_tokens);  // far slower than the target
  }
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_LE(last_chunk, 64);
}

}  // namespace
}  // namespace sluice
