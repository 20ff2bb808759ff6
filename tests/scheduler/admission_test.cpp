// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admission.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace sluice {
namespace {

class AdmissionTest : public ::testing::Test {
 protected:
  Expected<QueuedWork> enter(uint64_t tenant, TokenId token, size_t num_tokens = 100) {
    const std::vector<TokenId> prompt(num_tokens, token);
    return admission_.enter({.tenant = TenantId(tenant),
                             .prompt = prompt,
                             .max_tokens = 8,
                             .max_wait_ms = max_wait_ms_},
                            speed_,
                            /*mean_output=*/50,
                            now_ms_);
  }

  Admission admission_{{.max_requests = 16, .max_tokens = 4000, .max_wait_ms = 10'000}};
  double speed_ = 100;  // a request of a hundred tokens is 116 of work
  int64_t max_wait_ms_ = 0;
  int64_t now_ms_ = 1'000'000;
};

TEST_F(AdmissionTest, WorkIsThePromptAndTwiceTheAnswerThatIsExpected) {
  EXPECT_EQ(enter(0, 1)->work, 116);
  const std::vector<TokenId> prompt(10, 1);
  const auto entered = admission_.enter(
      {.tenant = TenantId(0), .prompt = prompt, .max_tokens = 1000, .max_wait_ms = 0}, 0, 50, 0);
  EXPECT_EQ(entered->work, 110);
}

TEST_F(AdmissionTest, WhatWasLetInIsTakenBackWhole) {
  speed_ = 0;
  std::vector<QueuedWork> queued;
  for (TokenId i = 0; i < 16; ++i) queued.push_back(*enter(0, i));
  EXPECT_EQ(enter(0, 99).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(enter(0, 99).error().retry_after_s, 0);  // the speed is not known
  for (const QueuedWork& work : queued) admission_.leave(work);
  EXPECT_EQ(admission_.num_requests(), 0);
  EXPECT_EQ(admission_.predict_wait_ms(TenantId(0), 100), 0);
  for (TokenId i = 0; i < 16; ++i) EXPECT_TRUE(enter(0, i));
}

TEST_F(AdmissionTest, TokensOfPromptsAreBoundedButOnePromptIsNot) {
  speed_ = 0;
  EXPECT_TRUE(enter(0, 1, 5000));
  const auto refused = enter(0, 2, 1);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("5000 tokens"), std::string::npos);
}

TEST_F(AdmissionTest, WhoWouldWaitTooLongIsRefusedAndToldWhenNot) {
  int num_entered = 0;
  while (enter(0, num_entered)) ++num_entered;
  EXPECT_EQ(num_entered, 9);  // 1.16 s each, at most 10 s
  // The wait is 0.44 s too long, plus its own 1.16 s and a quarter of it.
  EXPECT_EQ(enter(0, 9).error().retry_after_s, 2);
  max_wait_ms_ = 1000;
  EXPECT_EQ(enter(0, 100).error().code, ErrorCode::kResourceExhausted);
  max_wait_ms_ = 20'000;  // the server's bound is lower
  EXPECT_FALSE(enter(0, 101));
}

TEST_F(AdmissionTest, AheadOfARequestIsAsMuchOfOtherTenantsAsOfItsOwn) {
  for (TokenId i = 0; i < 9; ++i) ASSERT_TRUE(enter(1, i));
  EXPECT_FALSE(enter(1, 9));
  EXPECT_EQ(admission_.predict_wait_ms(TenantId(2), speed_), 0);
  ASSERT_TRUE(enter(2, 50));
  EXPECT_EQ(admission_.predict_wait_ms(TenantId(2), speed_), 2320);
}

TEST_F(AdmissionTest, ANamedTenantLeavesRoomForTheNext) {
  speed_ = 0;
  TokenId num_entered = 0;
  while (enter(1, num_entered)) ++num_entered;
  EXPECT_EQ(num_entered, 14);  // 16 is the bound
  EXPECT_TRUE(enter(2, 100));
  EXPECT_FALSE(enter(2, 101));
}

TEST_F(AdmissionTest, TheTokensToo) {
  speed_ = 0;
  TokenId num_entered = 0;
  while (enter(1, num_entered, 1000)) ++num_entered;
  EXPECT_EQ(num_entered, 3);  // four would leave nothing of 4000
  EXPECT_TRUE(enter(2, 100, 1000));
}

TEST_F(AdmissionTest, ATicketLetsTheSameRequestInAtItsTimeThoughTheQueueBeFull) {
  std::vector<QueuedWork> queued;
  for (TokenId i = 0; i < 9; ++i) queued.push_back(*enter(0, i));
  const int32_t first_s = enter(0, 50).error().retry_after_s;
  const int32_t second_s = enter(0, 51).error().retry_after_s;
  EXPECT_EQ(first_s, 2);
  EXPECT_EQ(second_s, 4);                                  // after the first
  EXPECT_EQ(enter(0, 50).error().retry_after_s, first_s);  // no second ticket
  now_ms_ += 1000 * first_s - 900;
  EXPECT_FALSE(enter(0, 50));  // too early
  now_ms_ += 900;
  EXPECT_FALSE(enter(0, 52));  // the queue is still full
  EXPECT_TRUE(enter(0, 50));
  EXPECT_TRUE(enter(0, 50));  // another choice of the request
  now_ms_ += 2000;
  EXPECT_FALSE(enter(0, 50));  // used
  EXPECT_TRUE(enter(0, 51));
}

TEST_F(AdmissionTest, ATicketEndsSomeTimeAfterItsHour) {
  for (TokenId i = 0; i < 9; ++i) ASSERT_TRUE(enter(0, i));
  const int32_t first_s = enter(0, 50).error().retry_after_s;
  now_ms_ += 1000 * first_s + 20'000;
  EXPECT_FALSE(enter(0, 50));
}

TEST_F(AdmissionTest, TicketsNeverFillTheQueueBeyondAQuarter) {
  speed_ = 1e9;
  for (TokenId i = 0; i < 16; ++i) ASSERT_TRUE(enter(0, i, 1));
  for (TokenId i = 100; i < 200; ++i) ASSERT_FALSE(enter(0, i, 1));
  now_ms_ += 2000;
  int num_entered = 0;
  for (TokenId i = 100; i < 200; ++i) num_entered += enter(0, i, 1).has_value();
  EXPECT_EQ(num_entered, Admission::extra_requests(16));
}

TEST(QueueSpeed, IsWorkOverTheTimeInWhichSomebodyWaitedAndFollowsIt) {
  QueueSpeed speed;
  speed.observe(10, 0.1);
  EXPECT_EQ(speed.work_per_s(), 0);  // the time is too short
  speed.observe(0, 0);
  for (int i = 0; i < 100; ++i) speed.observe(i % 2 == 0 ? 200 : 0, 0.05);
  EXPECT_NEAR(speed.work_per_s(), 2000, 60);
  for (int i = 0; i < 2000; ++i) speed.observe(5, 0.05);
  EXPECT_NEAR(speed.work_per_s(), 100, 20);
  for (int i = 0; i < 500; ++i) speed.observe_output(7);
  EXPECT_NEAR(speed.mean_output(), 7, 0.1);
}

}  // namespace
}  // namespace sluice
