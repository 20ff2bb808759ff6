// SPDX-License-Identifier: Apache-2.0
#include "engine/core/types.h"

#include <gtest/gtest.h>

#include <sstream>
#include <type_traits>
#include <unordered_set>

namespace sluice {
namespace {

TEST(Types, IdsOfDifferentMeaningDoNotMix) {
  static_assert(!std::is_convertible_v<RequestId, BlockId>);
  static_assert(!std::is_convertible_v<uint64_t, RequestId>);
  static_assert(!std::is_constructible_v<BlockId, RequestId>);
  EXPECT_LT(BlockId(1), BlockId(2));
  EXPECT_EQ(RequestId(7), RequestId(7));
  EXPECT_LT(kNullBlock, BlockId(0));
}

TEST(Types, IdsHashAndPrintAsTheirNumber) {
  const std::unordered_set<RequestId> ids = {RequestId(1), RequestId(2), RequestId(1)};
  EXPECT_EQ(ids.size(), 2U);
  std::ostringstream out;
  out << RequestId(42);
  EXPECT_EQ(out.str(), "42");
}

TEST(Types, RoundingUpKeepsMultiples) {
  EXPECT_EQ(ceil_div(0, 16), 0);
  EXPECT_EQ(ceil_div(16, 16), 1);
  EXPECT_EQ(ceil_div(17, 16), 2);
  EXPECT_EQ(align_up(17, 16), 32);
}

TEST(Types, DtypesKnowSizeAndName) {
  EXPECT_EQ(dtype_bytes(DType::kF32), 4U);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2U);
  EXPECT_EQ(dtype_bytes(DType::kI8), 1U);
  EXPECT_EQ(to_string(DType::kBF16), "bfloat16");
}

}  // namespace
}  // namespace sluice
