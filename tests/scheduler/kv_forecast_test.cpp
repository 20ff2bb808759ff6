// SPDX-License-Identifier: Apache-2.0
#include "scheduler/kv_forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace sluice {
namespace {

TEST(AnswerLengths, NothingIsExpectedBeforeAnythingEnded) {
  EXPECT_EQ(AnswerLengths().expected_more(0), 0);
  EXPECT_EQ(AnswerLengths().expected_more(1000), 0);
}

TEST(AnswerLengths, ExpectWhatLongerOnesGot) {
  AnswerLengths lengths;
  for (int i = 0; i < 50; ++i) {
    lengths.observe(10);
    lengths.observe(1000);
  }
  EXPECT_NEAR(lengths.expected_more(0), 505, 5);
  // Beyond ten tokens it must be one of the long answers.
  EXPECT_NEAR(lengths.expected_more(40), 960, 1);
  EXPECT_NEAR(lengths.expected_more(990), 10, 1);
  EXPECT_EQ(lengths.expected_more(4000), 500);
}

TEST(AnswerLengths, FollowAChange) {
  AnswerLengths lengths;
  for (int i = 0; i < 1000; ++i) lengths.observe(20);
  for (int i = 0; i < 1000; ++i) lengths.observe(600);
  EXPECT_NEAR(lengths.expected_more(0), 600, 2);
}

TEST(AnswerLengths, AnyLengthHasItsPlace) {
  AnswerLengths lengths;
  for (int32_t n = 0; n < 1 << 20; n = n * 5 / 4 + 1) lengths.observe(n);
  lengths.observe(INT32_MAX);
  EXPECT_GT(lengths.expected_more(1 << 19), 0);
}

// Compares with stepwise counting, one block per token.
TEST(KvForecast, PeakIsThatOfTheStepsToCome) {
  std::mt19937_64 random(7);
  const auto between = [&](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int episode = 0; episode < 200; ++episode) {
    const int32_t count = between(0, 12);
    KvForecast forecast(count);
    std::vector<std::pair<int32_t, int32_t>> all;
    for (int32_t i = 0; i < count; ++i) {
      all.emplace_back(between(1, 100), between(0, 60));
      forecast.add(all.back().first, all.back().second);
    }
    all.emplace_back(between(1, 100), between(0, 60));
    int64_t peak = 0;
    for (int32_t step = 0; step <= 60; ++step) {
      int64_t held = 0;
      for (const auto& [tokens, more] : all) held += more >= step ? tokens + step : 0;
      peak = std::max(peak, held);
    }
    EXPECT_EQ(forecast.peak_with(all.back().first, all.back().second, 1), peak);
  }
}

}  // namespace
}  // namespace sluice
