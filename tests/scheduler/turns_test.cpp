// SPDX-License-Identifier: Apache-2.0
// Whose turn it is: priorities, tenants, aging, deadlines, and who gives way.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/scheduler/scheduler_rig.h"
#include "tests/support/new_request.h"

namespace sluice {
namespace {

TEST_F(SchedulerTest, WaitingRequestsComeByPriorityThenArrival) {
  SchedulerOptions narrow = options();
  narrow.max_num_seqs = 1;
  build(64, narrow);
  ASSERT_TRUE(add(1, 4, 1, 1));
  ASSERT_TRUE(add(2, 4, 1, 1));
  ASSERT_TRUE(add(3, 4, 1, 0));
  std::vector<uint64_t> order;
  while (scheduler_->has_work()) order.push_back(step().scheduled.at(0).id.value);
  EXPECT_EQ(order, (std::vector<uint64_t>{3, 1, 2}));
}

TEST_F(SchedulerTest, TenantsTakeTurnsByWhatTheyWereGivenNotByWhatTheyAskFor) {
  SchedulerOptions narrow = options();
  narrow.max_num_seqs = 1;
  build(64, narrow);
  for (uint64_t id = 1; id <= 5; ++id) ASSERT_TRUE(add_of(1, id, 20));
  for (uint64_t id = 6; id <= 7; ++id) ASSERT_TRUE(add_of(2, id, 10));
  // Each request of the first tenant costs 22 tokens, each of the other one 12.
  EXPECT_EQ(starts(), (std::vector<uint64_t>{1, 6, 7, 2, 3, 4, 5}));
  EXPECT_EQ(scheduler_->num_virtual_tokens(TenantId{1}), 110);
  EXPECT_EQ(scheduler_->num_virtual_tokens(TenantId{2}), 24);
  EXPECT_EQ(scheduler_->num_virtual_tokens(TenantId{3}), 0);
}

TEST_F(SchedulerTest, IdleTimeIsWorthTheTokensOfOneStepAtMost) {
  SchedulerOptions narrow = options();
  narrow.max_num_seqs = 1;
  narrow.max_num_batched_tokens = 24;
  build(64, narrow);
  ASSERT_TRUE(add_of(2, 1, 10));
  step();
  for (uint64_t id = 2; id <= 6; ++id) ASSERT_TRUE(add_of(1, id, 20));
  for (int i = 0; i < 4; ++i) step();
  // The other tenant, which was given 12 tokens and this one 88, returns; it begins with 42.
  for (uint64_t id = 7; id <= 10; ++id) ASSERT_TRUE(add_of(2, id, 20));
  EXPECT_EQ(starts(), (std::vector<uint64_t>{7, 8, 9, 6, 10}));
}

TEST_F(SchedulerTest, ATenantOfFewTokensPassesTheRunningPrefillOfAnother) {
  build(128, options());
  ASSERT_TRUE(add_of(1, 1, 200));
  EXPECT_EQ(tokens_of(step(), 1), 64);
  ASSERT_TRUE(add_of(2, 2, 80));
  ASSERT_TRUE(add_of(1, 3, 8));
  SchedulerOutput output = step();
  EXPECT_EQ(tokens_of(output, 2), 64);
  output = step();
  EXPECT_EQ(tokens_of(output, 2), 16);
  EXPECT_EQ(tokens_of(output, 1), 48);
  EXPECT_EQ(tokens_of(output, 3), 0);
}

TEST_F(SchedulerTest, LowPriorityWaitsForOtherTenantsTooUntilItHasAged) {
  SchedulerOptions narrow = options();
  narrow.max_num_seqs = 1;
  narrow.priority_aging_ms = 100;
  build(64, narrow);
  ASSERT_TRUE(add_of(1, 1, 8, /*priority=*/2));
  ASSERT_TRUE(add_of(2, 2, 50));
  EXPECT_EQ(tokens_of(step(), 2), 50);
  ASSERT_TRUE(add_of(2, 3, 50));
  now_ms_ = 199;
  EXPECT_EQ(tokens_of(step(), 3), 50);
  ASSERT_TRUE(add_of(2, 4, 50));
  now_ms_ = 200;
  EXPECT_EQ(tokens_of(step(), 1), 8);
}

TEST_F(SchedulerTest, WithoutAgingALowPriorityWaitsForAllHigherOnes) {
  SchedulerOptions narrow = options();
  narrow.max_num_seqs = 1;
  narrow.priority_aging_ms = 0;
  build(64, narrow);
  ASSERT_TRUE(add_of(1, 1, 8, /*priority=*/1));
  for (uint64_t id = 2; id <= 5; ++id) {
    now_ms_ += 1'000'000;
    ASSERT_TRUE(add_of(1, id, 8));
    EXPECT_EQ(tokens_of(step(), id), 8);
  }
}

TEST_F(SchedulerTest, AClockThatGoesBackStandsStill) {
  SchedulerOptions narrow = options();
  narrow.max_num_seqs = 1;
  narrow.priority_aging_ms = 100;
  build(64, narrow);
  ASSERT_TRUE(add_of(2, 1, 50));
  step();
  ASSERT_TRUE(add(2, 4, 3));
  step();
  ASSERT_TRUE(add_of(1, 3, 8, /*priority=*/1));
  ASSERT_TRUE(add_of(2, 4, 50));
  now_ms_ = 100;  // the third is due
  step();
  now_ms_ = 0;
  step();
  EXPECT_EQ(tokens_of(step(), 3), 8);
}

TEST_F(SchedulerTest, WhoseTurnItWasKeepsItUntilThereIsRoom) {
  build(16, options());
  ASSERT_TRUE(add_of(1, 1, 28, 0, /*max_tokens=*/20));  // 7 blocks, 12 in the end
  step();
  ASSERT_TRUE(add_of(1, 2, 48));  // 12 blocks
  EXPECT_EQ(tokens_of(step(), 2), 0);
  ASSERT_TRUE(add_of(2, 3, 4));  // would fit, and its tenant got nothing yet
  while (scheduler_->find(RequestId{1}) != nullptr) EXPECT_EQ(tokens_of(step(), 3), 0);
  const SchedulerOutput output = step();
  EXPECT_EQ(tokens_of(output, 2), 48);
  EXPECT_EQ(tokens_of(output, 3), 4);
}

TEST_F(SchedulerTest, TheVictimIsOfLowPriorityOrOfTheTenantThatWasGivenMost) {
  for (const bool by_priority : {false, true}) {
    build(9, options());
    const auto add_long = [this, by_priority](uint64_t id, uint64_t tenant, int32_t priority) {
      Request request =
          testing::new_request(id, std::vector<TokenId>(8, static_cast<TokenId>(id)), 20);
      request.priority = priority;
      request.tenant = TenantId{tenant};
      request.arrival_ms = by_priority ? now_ms_ - 10'000 * priority : now_ms_;
      return scheduler_->add(std::move(request));
    };
    ASSERT_TRUE(add_long(1, 1, 0));
    ASSERT_TRUE(add_long(2, by_priority ? 3 : 1, by_priority ? 1 : 0));
    ASSERT_TRUE(add_long(3, 2, 0));
    now_ms_ = -1;
    SchedulerOutput output;
    do output = step();
    while (output.preempted.empty());
    EXPECT_EQ(output.preempted, std::vector<RequestId>{RequestId{2}}) << by_priority;
    now_ms_ = 0;
  }
}

TEST_F(SchedulerTest, WhoHasNotStartedAtTheDeadlineEnds) {
  SchedulerOptions narrow = options();
  narrow.max_num_seqs = 2;
  build(64, narrow);
  const auto add_until = [this](uint64_t id, TokenId token, int64_t deadline_ms) {
    Request request = testing::new_request(id, std::vector<TokenId>(40, token), 4);
    request.deadline_ms = deadline_ms;
    return scheduler_->add(std::move(request));
  };
  ASSERT_TRUE(add_until(1, 7, 30));
  ASSERT_TRUE(add_until(2, 7, 30));  // waits for the first one's prefix
  ASSERT_TRUE(add_until(3, 8, 31));
  ASSERT_TRUE(add_until(4, 9, kNoDeadline));
  ASSERT_TRUE(add_until(5, 10, 30));
  SchedulerOutput output = schedule();
  EXPECT_EQ(output.scheduled.size(), 2U);
  now_ms_ = 29;
  EXPECT_TRUE(schedule().expired.empty());
  now_ms_ = 30;
  EXPECT_EQ(schedule().expired, (std::vector<RequestId>{RequestId{2}, RequestId{5}}));
  EXPECT_EQ(scheduler_->find(RequestId{2}), nullptr);
  EXPECT_EQ(scheduler_->num_waiting(), 1);
}

}  // namespace
}  // namespace sluice
