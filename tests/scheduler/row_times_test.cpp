// SPDX-License-Identifier: Apache-2.0
#include "scheduler/row_times.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace sluice {
namespace {

StepShape decodes(int64_t rows) {
  StepShape shape;
  for (int64_t i = 0; i < rows; ++i) shape.add(/*decode=*/true, 200, 1);
  return shape;
}

double predicted(const RowTimes& times, const CostModel& cost, int64_t rows) {
  const StepShape shape = decodes(rows);
  double ms = 0;
  times.predict(cost, {&shape, 1}, {&ms, 1});
  return ms;
}

TEST(RowTimes, BucketsPartitionTheRows) {
  EXPECT_EQ(RowTimes::bucket_of(0), 0U);
  int64_t last = 0;
  for (size_t bucket = 0; bucket < RowTimes::kNumBuckets; ++bucket) {
    const int64_t end = RowTimes::bucket_end(bucket);
    ASSERT_GT(end, last);
    EXPECT_LE(end, std::max<int64_t>(last + 1, last * 5 / 4));
    for (int64_t rows = last + 1; rows <= end; ++rows) ASSERT_EQ(RowTimes::bucket_of(rows), bucket);
    last = end;
  }
  EXPECT_EQ(RowTimes::bucket_of(1 << 20), RowTimes::kNumBuckets - 1);
}

TEST(RowTimes, StairsThatTheFitDoesNotKnowAreSeen) {
  const auto truth = [](int64_t rows) { return 4 + 3 * static_cast<double>((rows + 15) / 16); };
  RowTimes times;
  CostModel cost;
  for (int round = 0; round < 20; ++round) {
    for (const int64_t rows : {1, 8, 16, 20, 32, 48, 64}) {
      cost.observe(decodes(rows), truth(rows));
      times.observe(decodes(rows), truth(rows));
    }
  }
  for (const int64_t rows : {1, 8, 16, 20, 32, 48, 64}) {
    EXPECT_NEAR(predicted(times, cost, rows), truth(rows), 0.02 * truth(rows)) << rows;
  }
}

TEST(RowTimes, SlowStepsAmongMostOthersChangeNothing) {
  RowTimes times;
  CostModel cost;
  for (int i = 0; i < 30; ++i) times.observe(decodes(4), i % 3 == 0 ? 100 : 5);
  EXPECT_NEAR(predicted(times, cost, 4), 5, 1e-9);
}

TEST(RowTimes, MoreRowsNeverSeemFaster) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    RowTimes times;
    CostModel cost;
    for (int i = 0; i < 100; ++i) {
      const StepShape shape = decodes(static_cast<int64_t>(1 + random() % 64));
      const double ms = 1 + static_cast<double>(random() % 100);
      cost.observe(shape, ms);
      times.observe(shape, ms);
    }
    std::vector<StepShape> shapes;
    for (int64_t rows = 1; rows <= 40; ++rows) shapes.push_back(decodes(rows));
    std::vector<double> ms(shapes.size());
    times.predict(cost, shapes, ms);
    for (size_t i = 1; i < ms.size(); ++i) ASSERT_GE(ms[i], ms[i - 1]);
  }
}

TEST(RowTimes, LargerStepsThanMeasuredAreTriedLittleByLittle) {
  RowTimes times;
  CostModel cost;
  for (int i = 0; i < 50; ++i) {
    cost.observe(decodes(4), 10);
    times.observe(decodes(4), 10);
  }
  EXPECT_NEAR(predicted(times, cost, 8), 10, 0.1);
  EXPECT_GE(predicted(times, cost, 16), 19.9);
  EXPECT_GE(predicted(times, cost, 80), 99);
}

TEST(RowTimes, FollowsTheContextByTheFit) {
  // 1 ms plus 0.01 ms per key; the table saw only short contexts.
  RowTimes times;
  CostModel cost;
  const auto shape_at = [](int64_t position) {
    StepShape shape;
    shape.add(true, position, 1);
    return shape;
  };
  const auto truth = [](const StepShape& shape) {
    return 1 + 0.01 * static_cast<double>(shape.num_decode_pairs);
  };
  for (int i = 0; i < 3000; ++i) {
    const StepShape shape = shape_at(i * 37 % 400);
    cost.observe(shape, truth(shape));
    times.observe(shape, truth(shape));
  }
  const StepShape far = shape_at(4000);
  double ms = 0;
  times.predict(cost, {&far, 1}, {&ms, 1});
  EXPECT_NEAR(ms, truth(far), 0.1 * truth(far));
}

}  // namespace
}  // namespace sluice
