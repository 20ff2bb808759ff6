// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cost_model.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace sluice {
namespace {

double truth(const StepShape& shape) {
  return 2 + 0.08 * static_cast<double>(shape.num_prefill_tokens) +
         0.6 * static_cast<double>(shape.num_decode_tokens) +
         2e-5 * static_cast<double>(shape.num_prefill_pairs) +
         6e-5 * static_cast<double>(shape.num_decode_pairs);
}

StepShape random_shape(std::mt19937_64& random) {
  StepShape shape;
  const auto num_decodes = static_cast<int64_t>(random() % 64);
  for (int64_t i = 0; i < num_decodes; ++i) {
    shape.add(/*decode=*/true, static_cast<int64_t>(random() % 2000), 1);
  }
  if (random() % 2 == 0) {
    shape.add(/*decode=*/false,
              static_cast<int64_t>(random() % 2000),
              static_cast<int64_t>(random() % 512 + 1));
  }
  return shape;
}

TEST(CostModel, LearnsLinearCostsWithinAFewPercent) {
  std::mt19937_64 random(3);
  CostModel model;
  for (int i = 0; i < 500; ++i) {
    const StepShape shape = random_shape(random);
    model.observe(shape, truth(shape));
  }
  for (int i = 0; i < 100; ++i) {
    const StepShape shape = random_shape(random);
    EXPECT_NEAR(model.predict_ms(shape) / truth(shape), 1, 0.05);
  }
}

TEST(CostModel, KeepsWhatItKnowsOfPrefillsThroughALongRunOfDecodes) {
  std::mt19937_64 random(4);
  CostModel model;
  for (int i = 0; i < 500; ++i) {
    const StepShape shape = random_shape(random);
    model.observe(shape, truth(shape));
  }
  for (int i = 0; i < 20'000; ++i) {
    StepShape shape;
    for (int row = 0; row < 32; ++row) shape.add(true, 100 + i % 1000, 1);
    model.observe(shape, truth(shape));
  }
  StepShape prefill;
  prefill.add(false, 0, 512);
  EXPECT_NEAR(model.predict_ms(prefill) / truth(prefill), 1, 0.25);
}

TEST(CostModel, SlowStepMovesThePredictionByABoundedAmount) {
  std::mt19937_64 random(5);
  CostModel model;
  for (int i = 0; i < 500; ++i) {
    const StepShape shape = random_shape(random);
    model.observe(shape, truth(shape));
  }
  StepShape shape;
  shape.add(false, 0, 256);
  const double before = model.predict_ms(shape);
  model.observe(shape, 1e6);
  EXPECT_LT(model.predict_ms(shape), before * 1.5);
}

TEST(CostModel, PrefillThatItAllowsIsTheLongestWithinTheTarget) {
  std::mt19937_64 random(6);
  CostModel model;
  for (int i = 0; i < 200; ++i) {
    const StepShape shape = random_shape(random);
    model.observe(shape, truth(shape));
    StepShape step;
    step.add(true, 500, 1);
    const auto start = static_cast<int64_t>(random() % 4000);
    const double target = static_cast<double>(random() % 100) + 10;
    const int32_t num_tokens = model.max_prefill_tokens(step, start, target);
    StepShape with = step;
    with.add(false, start, num_tokens);
    if (num_tokens > 0) {
      EXPECT_LE(model.predict_ms(with), target + 1e-6);
    }
    with = step;
    with.add(false, start, num_tokens + 1);
    EXPECT_GT(model.predict_ms(with), target - 1e-6);
  }
}

TEST(CostModel, UnknownMeasurementsAreIgnored) {
  CostModel model;
  StepShape shape;
  shape.add(false, 0, 100);
  const double before = model.predict_ms(shape);
  model.observe(shape, 0);
  model.observe(shape, -1);
  EXPECT_EQ(model.predict_ms(shape), before);
}

}  // namespace
}  // namespace sluice
