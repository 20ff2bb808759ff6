// SPDX-License-Identifier: Apache-2.0
#include "quant/format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "tests/quant/golden.h"

namespace sluice {
namespace {

TEST(FormatTable, EveryFormatIsFoundByItsGgmlType) {
  std::set<uint32_t> ids;
  for (const FormatInfo& info : format_table()) {
    EXPECT_EQ(format_from_ggml_type(info.ggml_type), info.format);
    EXPECT_EQ(&format_info(info.format), &info);
    EXPECT_TRUE(ids.insert(info.ggml_type).second) << info.name;
  }
}

TEST(FormatTable, UnknownGgmlTypesAreNotFound) {
  EXPECT_FALSE(format_from_ggml_type(9));
  EXPECT_FALSE(format_from_ggml_type(0xffffffffU));
}

TEST(FormatTable, RowBytesCountWholeBlocks) {
  EXPECT_EQ(row_bytes(WeightFormat::kF32, 3), 12);
  EXPECT_EQ(row_bytes(WeightFormat::kF16, 3), 6);
  EXPECT_EQ(row_bytes(WeightFormat::kQ4_1, 64), 40);
  EXPECT_EQ(row_bytes(WeightFormat::kQ8_0, 64), 68);
}

TEST(NonFiniteScales, AreFoundInEveryScaleOfEveryFormat) {
  for (const FormatInfo& info : format_table()) {
    const int64_t k = 3 * info.block_elements;
    std::vector<std::byte> row(static_cast<size_t>(row_bytes(info.format, k)));
    EXPECT_FALSE(find_non_finite(info.format, row.data(), k)) << info.name;
    for (int32_t i = 0; i < layout_of(info.format).num_half_scales(); ++i) {
      for (const uint16_t bad : {0x7C00, 0xFC00, 0x7E00, 0x7C01}) {
        std::vector<std::byte> broken = row;
        std::memcpy(&broken[static_cast<size_t>(2 * info.block_bytes + info.scale_offset + 2 * i)],
                    &bad,
                    sizeof(bad));
        const auto found = find_non_finite(info.format, broken.data(), k);
        ASSERT_TRUE(found) << info.name << " scale " << i;
        EXPECT_EQ(found->block, 2) << info.name;
        EXPECT_FALSE(std::isfinite(found->value)) << info.name;
      }
    }
  }
}

TEST(NonFiniteScales, AreFoundAsMxfp4ExponentsAndAsFloats) {
  std::byte row[34] = {};
  row[17] = std::byte{254};
  EXPECT_FALSE(find_non_finite(WeightFormat::kMXFP4, row, 64));
  row[17] = std::byte{255};
  EXPECT_EQ(find_non_finite(WeightFormat::kMXFP4, row, 64)->block, 1);
  for (const int64_t at : {0, 63, 64, 127, 128, 139}) {
    float floats[140] = {};
    const auto* float_bytes = reinterpret_cast<const std::byte*>(floats);
    EXPECT_FALSE(find_non_finite(WeightFormat::kF32, float_bytes, 140));
    floats[at] = -std::numeric_limits<float>::infinity();
    const auto found = find_non_finite(WeightFormat::kF32, float_bytes, 140);
    ASSERT_TRUE(found) << at;
    EXPECT_EQ(found->block, at);
  }
  uint16_t halves[40] = {};
  halves[1] = 0x7F80;  // infinity as bf16, a NaN as fp16
  const auto* bytes = reinterpret_cast<std::byte*>(halves);
  EXPECT_TRUE(std::isinf(find_non_finite(WeightFormat::kBF16, bytes, 40)->value));
  EXPECT_TRUE(std::isnan(find_non_finite(WeightFormat::kF16, bytes, 40)->value));
}

TEST(FormatTableDeathTest, ARowOfPartialBlocksIsABug) {
  EXPECT_DEATH(row_bytes(WeightFormat::kQ4_1, 33), "CHECK failed");
}

TEST(Half, EveryFiniteValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    if ((half & 0x7fffU) > 0x7c00U) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      ASSERT_EQ(float_to_half(value), half);
    }
  }
}

TEST(Half, ValuesFollowTheirDefinition) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = static_cast<int>(bits >> 10);
    const int fraction = static_cast<int>(bits & 0x3ff);
    const double expected =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(half_to_float(static_cast<uint16_t>(bits)), expected);
    ASSERT_EQ(half_to_float(static_cast<uint16_t>(bits | 0x8000U)), -expected);
  }
  EXPECT_TRUE(std::isinf(half_to_float(0x7c00)));
  EXPECT_LT(half_to_float(0xfc00), 0.0F);
}

TEST(Half, RoundsToNearestEvenAsNumpyDoes) {
  const auto floats = read_golden<float>("convert.f32");
  const auto halves = read_golden<uint16_t>("convert.f16");
  ASSERT_EQ(floats.size(), halves.size());
  for (size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(float_to_half(floats[i]), halves[i]) << std::bit_cast<uint32_t>(floats[i]);
  }
}

TEST(Bf16, RoundsToNearestEven) {
  const auto floats = read_golden<float>("convert.f32");
  const auto rounded = read_golden<uint16_t>("convert.bf16");
  ASSERT_EQ(floats.size(), rounded.size());
  for (size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(float_to_bf16(floats[i]), rounded[i]) << std::bit_cast<uint32_t>(floats[i]);
  }
}

TEST(Bf16, EveryValueSurvivesTheRoundTripAndNanStaysNan) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = static_cast<uint16_t>(bits);
    const float wide = bf16_to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(wide))));
    } else {
      ASSERT_EQ(float_to_bf16(wide), value);
    }
  }
  // A NaN with a payload only in the bits that are cut off must not become infinity.
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(std::bit_cast<float>(0x7f800001U)))));
}

}  // namespace
}  // namespace sluice
