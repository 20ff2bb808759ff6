// SPDX-License-Identifier: Apache-2.0
// From pooled states to answers: what is not finite, lengths, and logits as scores.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/core/pooling.h"
#include "engine/loop/pool_rows.h"

namespace sluice {
namespace {

TEST(Pooling, AValueThatIsNotFiniteFails) {
  PoolingInfo info;
  info.width = 2;
  std::vector<float> pooled = {1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_FALSE(finish_pooling(info, {}, pooled));
  pooled = {std::numeric_limits<float>::infinity(), 0};
  EXPECT_FALSE(finish_pooling(info, {}, pooled));
  std::vector<float> none;
  EXPECT_FALSE(finish_pooling(info, {}, none));
}

// The largest element of a text with a value that is no number is none, wherever that one is.
TEST(Pooling, TheLargestOfWhatIsNoNumberIsNone) {
  PoolingInfo info;
  info.type = PoolingType::kMax;
  info.width = 1;
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& rows :
       {std::vector<float>{kNone, 2, 3}, {1, kNone, 3}, {1, 2, kNone}, {-2, -3, -1}}) {
    std::vector<float> pooled;
    for (int32_t i = 0; i < 3; ++i) {
      pool_row(info, {}, i, {&rows[static_cast<size_t>(i)], 1}, pooled);
    }
    end_rows(info, {}, 3, pooled);
    EXPECT_EQ(finish_pooling(info, {}, pooled), rows[0] == -2);
  }
}

TEST(Pooling, ScoresAreSquashedOnce) {
  PoolingInfo info;
  info.is_classifier = true;
  info.width = 3;
  info.function = ScoreFunction::kSigmoid;
  std::vector<float> scores = {-30, 0, 7.7F};
  ASSERT_TRUE(finish_pooling(info, {}, scores));
  for (size_t i = 0; i < 3; ++i) {
    const double logit = std::vector<double>{-30, 0, 7.7F}[i];
    EXPECT_NEAR(scores[i], 1 / (1 + std::exp(-logit)), 1e-7) << i;
  }
  info.function = ScoreFunction::kSoftmax;
  scores = {1, 2, 3};
  ASSERT_TRUE(finish_pooling(info, {}, scores));
  const double sum = std::exp(-2.0) + std::exp(-1.0) + 1;
  EXPECT_NEAR(scores[0], std::exp(-2.0) / sum, 1e-7);
  EXPECT_NEAR(scores[2], 1 / sum, 1e-7);
  scores = {1, 2, 3};
  PoolingParams raw;
  raw.activates = false;
  ASSERT_TRUE(finish_pooling(info, raw, scores));
  EXPECT_EQ(scores, (std::vector<float>{1, 2, 3}));
}

TEST(Pooling, YesAndNoAreOneScore) {
  PoolingInfo info;
  info.is_classifier = true;
  info.width = 1;
  info.label_tokens = {3, 4};
  info.function = ScoreFunction::kSigmoid;
  std::vector<float> logits = {1, 3};
  ASSERT_TRUE(finish_pooling(info, {}, logits));
  ASSERT_EQ(logits.size(), 1U);
  EXPECT_NEAR(logits[0], std::exp(3.0) / (std::exp(3.0) + std::exp(1.0)), 1e-7);
  info.label_tokens = {4};
  logits = {3};
  ASSERT_TRUE(finish_pooling(info, {}, logits));
  EXPECT_NEAR(logits[0], 1 / (1 + std::exp(-3.0)), 1e-7);
}

// Where files want neither length nor scale, a request may.
TEST(Pooling, TheUsualScaleIsForcedWhereFilesHaveNone) {
  PoolingParams forced;
  forced.forces_scale = true;
  PoolingInfo info;
  info.width = 2;
  std::vector<float> pooled = {3, 4};
  ASSERT_TRUE(finish_pooling(info, {}, pooled));
  EXPECT_EQ(pooled, (std::vector<float>{3, 4}));
  ASSERT_TRUE(finish_pooling(info, forced, pooled));
  EXPECT_EQ(pooled, (std::vector<float>{0.6F, 0.8F}));
  info.is_classifier = true;
  pooled = {0, 0};
  ASSERT_TRUE(finish_pooling(info, forced, pooled));
  EXPECT_EQ(pooled, (std::vector<float>{0.5F, 0.5F}));
  info.function = ScoreFunction::kSigmoid;  // of labels that do not exclude each other
  pooled = {0, 3};
  ASSERT_TRUE(finish_pooling(info, forced, pooled));
  EXPECT_EQ(pooled[0], 0.5F);
  info.function = ScoreFunction::kIdentity;
  info.width = 1;
  pooled = {2};
  ASSERT_TRUE(finish_pooling(info, {}, pooled));
  EXPECT_EQ(pooled, std::vector<float>{2});
  ASSERT_TRUE(finish_pooling(info, forced, pooled));
  EXPECT_NEAR(pooled[0], 1 / (1 + std::exp(-2.0)), 1e-7);
}

}  // namespace
}  // namespace sluice
