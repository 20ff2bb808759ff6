// SPDX-License-Identifier: Apache-2.0
#include "server/router/breaker.h"

#include <gtest/gtest.h>

#include "server/router/retry_budget.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Breaker::Time kStart{seconds(1000)};

TEST(Breaker, OpensAtTheFifthErrorInTenSeconds) {
  Breaker breaker;
  for (int i = 0; i < 4; ++i) breaker.failed(kStart + seconds(i));
  EXPECT_TRUE(breaker.allows(kStart + seconds(4)));
  Breaker late = breaker;
  late.failed(kStart + seconds(10) + milliseconds(1));  // the first one is forgotten
  EXPECT_EQ(late.state(kStart + seconds(11)), BreakerState::kClosed);
  breaker.failed(kStart + seconds(4));
  EXPECT_EQ(breaker.state(kStart + seconds(4)), BreakerState::kOpen);
  EXPECT_FALSE(breaker.allows(kStart + seconds(4)));
}

TEST(Breaker, ADeathOpensItAtOnceAndManyTellOfOne) {
  Breaker breaker;
  for (int i = 0; i < 64; ++i) breaker.died(kStart + milliseconds(i));
  EXPECT_EQ(breaker.opens_until(), kStart + seconds(1));
  EXPECT_FALSE(breaker.allows(kStart + milliseconds(999)));
  EXPECT_TRUE(breaker.allows(kStart + seconds(1)));
}

void fail_until_open(Breaker& breaker) {
  for (int i = 0; i < 5; ++i) breaker.failed(kStart);
}

TEST(Breaker, HalfOpenLetsOneThroughWhoseSuccessCloses) {
  Breaker breaker;
  fail_until_open(breaker);
  const auto later = kStart + seconds(2);
  EXPECT_EQ(breaker.state(later), BreakerState::kHalfOpen);
  ASSERT_TRUE(breaker.allows(later));
  breaker.sent(later);
  EXPECT_FALSE(breaker.allows(later)) << "the probe is out";
  EXPECT_EQ(breaker.state(later), BreakerState::kHalfOpen);
  breaker.succeeded();
  EXPECT_EQ(breaker.state(later), BreakerState::kClosed);
}

TEST(Breaker, WaitsTwiceAsLongAfterEachFailedProbeUpToThirtySeconds) {
  Breaker breaker;
  auto now = kStart;
  breaker.died(now);
  for (const int wait : {1, 2, 4, 8, 16, 30, 30}) {
    EXPECT_FALSE(breaker.allows(now + seconds(wait) - milliseconds(1))) << wait;
    now += seconds(wait);
    ASSERT_TRUE(breaker.allows(now)) << wait;
    breaker.sent(now);
    if (wait % 4 == 0) {
      breaker.failed(now);
    } else {
      breaker.died(now);
    }
  }
  now += seconds(30);
  breaker.sent(now);
  breaker.succeeded();
  breaker.died(now);
  EXPECT_EQ(breaker.opens_until(), now + seconds(1)) << "a success makes it forget";
}

TEST(Breaker, AProbeThatToldNothingIsFollowedByAnother) {
  Breaker breaker;
  fail_until_open(breaker);
  const auto later = kStart + seconds(1);
  breaker.sent(later);
  EXPECT_FALSE(breaker.allows(later));
  breaker.gave_up();
  EXPECT_TRUE(breaker.allows(later));
}

TEST(Breaker, AfterADeathAllPassAndTheNextDeathOpensItForLonger) {
  Breaker breaker;
  breaker.died(kStart);
  const auto later = kStart + seconds(1);
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(breaker.allows(later)) << i;
    breaker.sent(later);
  }
  EXPECT_EQ(breaker.state(later), BreakerState::kHalfOpen);
  breaker.gave_up();  // one of them; 63 are still out
  for (int i = 0; i < 63; ++i) breaker.died(later + milliseconds(i));
  EXPECT_EQ(breaker.opens_until(), later + seconds(2));
  EXPECT_FALSE(breaker.allows(later + seconds(1)));
}

TEST(Breaker, ASuccessThatCameLateDoesNotCloseIt) {
  Breaker breaker;
  breaker.sent(kStart);
  breaker.died(kStart);
  breaker.succeeded();  // what the worker had sent before, taken after the news of its death
  EXPECT_FALSE(breaker.allows(kStart + milliseconds(1)));
  EXPECT_EQ(breaker.opens_until(), kStart + seconds(1));
}

TEST(Breaker, RequestsSentBeforeItOpenedAreNoProbes) {
  Breaker breaker;
  breaker.sent(kStart);
  breaker.died(kStart);
  breaker.failed(kStart + seconds(2));  // an older request's; no probe was out
  EXPECT_EQ(breaker.opens_until(), kStart + seconds(1));
}

TEST(RetryBudget, ATenthOfTheRequestsAndAFewAtTheStart) {
  RetryBudget budget;
  int num_taken = 0;
  while (budget.take()) ++num_taken;
  EXPECT_EQ(num_taken, 3);
  for (int i = 0; i < 1000; ++i) {
    budget.count_request();
    num_taken += budget.take() ? 1 : 0;
  }
  EXPECT_NEAR(num_taken, 3 + 100, 1);
}

TEST(RetryBudget, ABurstIsBounded) {
  RetryBudget budget;
  for (int i = 0; i < 100'000; ++i) budget.count_request();
  int num_taken = 0;
  while (budget.take()) ++num_taken;
  EXPECT_EQ(num_taken, 100);
}

}  // namespace
}  // namespace sluice
