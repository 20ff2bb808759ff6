// SPDX-License-Identifier: Apache-2.0
#include "engine/core/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace sluice {
namespace {

Expected<int> half(int value) {
  if (value % 2 != 0) return make_error(ErrorCode::kInvalidArgument, "odd", "value", "odd_value");
  return value / 2;
}

Expected<int> quarter(int value) {
  SLUICE_TRY(const int first, half(value));
  SLUICE_TRY(const int second, half(first));
  return second;
}

Expected<void> check_even(int value) {
  SLUICE_TRY_VOID(half(value).map([](int) {}));
  return {};
}

Expected<std::unique_ptr<int>> boxed(int value) { return std::make_unique<int>(value); }

Expected<int> unboxed(int value) {
  SLUICE_TRY(const std::unique_ptr<int> box, boxed(value));
  return *box;
}

TEST(Status, TryHandsOnTheValueOrTheWholeError) {
  EXPECT_EQ(quarter(8).value(), 2);
  const auto failed = quarter(6);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failed.error().message, "odd");
  EXPECT_EQ(failed.error().param, "value");
  EXPECT_EQ(failed.error().machine_code, "odd_value");
}

TEST(Status, TryVoidStopsAtTheFirstError) {
  EXPECT_TRUE(check_even(2));
  EXPECT_FALSE(check_even(3));
}

TEST(Status, TryMovesWhatCannotBeCopied) { EXPECT_EQ(unboxed(5).value(), 5); }

TEST(Status, EveryCodeHasItsOwnName) {
  EXPECT_EQ(to_string(ErrorCode::kInvalidArgument), "invalid_argument");
  EXPECT_EQ(to_string(ErrorCode::kInternal), "internal");
  EXPECT_NE(to_string(ErrorCode::kNotFound), to_string(ErrorCode::kUnavailable));
}

TEST(StatusDeathTest, CheckPrintsPlaceExpressionAndOperands) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int three = 3;
  EXPECT_DEATH(CHECK(three == 4), "status_test.cpp:[0-9]+: CHECK failed: three == 4");
  EXPECT_DEATH(CHECK_EQ(three, 4), "three == 4 \\(3 vs 4\\)");
  EXPECT_DEATH(CHECK_LT(three, 3), "three < 3 \\(3 vs 3\\)");
}

TEST(Status, ChecksEvaluateTheirOperandsOnce) {
  int calls = 0;
  CHECK_EQ(++calls, 1);
  CHECK(++calls == 2);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace sluice
