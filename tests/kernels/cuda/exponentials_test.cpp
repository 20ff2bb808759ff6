// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace sluice::kernels::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Calls check for every 4097th bit pattern: floats of all exponents and signs, infinities and NaNs.
template <typename Check>
void for_floats(const Check& check) {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 4097) {
    check(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
}

TEST(CudaMath, ExponentialsAreThoseOfTheDefinitionForEveryFloat) {
  for_floats([](float x) {
    const float got = exp_of(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(got)) << std::bit_cast<uint32_t>(x);
    } else if (x < kExpBottom) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got), 0U) << x;
    } else if (x < kExpTop) {
      ASSERT_NEAR(got / std::exp(double{x}), 1, 1e-6) << x;
    } else {
      ASSERT_EQ(got, exp_of(kExpTop)) << x;
    }
  });
}

TEST(CudaMath, ANanOfAnyBitsIsNoNumberWhenItIsRaised) {
  for (const uint32_t bits : {0x7FFFFFFFU, 0xFFFFFFFFU, 0x7FC00000U, 0xFFC00000U}) {
    const auto nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(exp_of(nan))) << bits;
    EXPECT_TRUE(std::isnan(exp_of_difference(nan))) << bits;
    EXPECT_EQ(top_of(nan, 3), 3) << bits;
    EXPECT_EQ(top_of(3, nan), 3) << bits;
  }
}

TEST(CudaMath, ExponentialsOfDifferencesHaveTheSameBits) {
  for_floats([](float x) {
    if (std::isnan(x) || x > 0) return;
    ASSERT_EQ(std::bit_cast<uint32_t>(exp_of_difference(x)), std::bit_cast<uint32_t>(exp_of(x)))
        << x;
  });
  EXPECT_EQ(exp_of_difference(-kInfinity), 0);
  EXPECT_EQ(exp_of_difference(-0.0F), 1);
}

}  // namespace
}  // namespace sluice::kernels::cuda
