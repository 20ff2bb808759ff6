// SPDX-License-Identifier: Apache-2.0
#include "engine/core/checked.h"

#include <gtest/gtest.h>

#include <limits>

namespace sluice {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(Checked, OverflowIsReportedAndTheLargestValuesStillFit) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_mul(kMax / 3, 3), kMax);
  EXPECT_EQ(checked_mul(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(checked_mul(0, kMax), 0U);
}

TEST(Checked, AlignmentRoundsUpAndRefusesWhatIsNoPowerOfTwo) {
  EXPECT_EQ(checked_align(0, 32), 0U);
  EXPECT_EQ(checked_align(1, 32), 32U);
  EXPECT_EQ(checked_align(32, 32), 32U);
  EXPECT_EQ(checked_align(kMax - 3, 8), std::nullopt);
  EXPECT_EQ(checked_align(5, 0), std::nullopt);
  EXPECT_EQ(checked_align(5, 12), std::nullopt);
}

}  // namespace
}  // namespace sluice
