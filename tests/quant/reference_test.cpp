// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>

#include "quant/format.h"
#include "tests/quant/golden.h"

namespace sluice {
namespace {

struct GoldenFormat {
  WeightFormat format;
  const char* stem;
};

class QuantGolden : public testing::TestWithParam<GoldenFormat> {};

INSTANTIATE_TEST_SUITE_P(Formats,
                         QuantGolden,
                         testing::Values(GoldenFormat{WeightFormat::kF16, "f16"},
                                         GoldenFormat{WeightFormat::kQ4_1, "q4_1"},
                                         GoldenFormat{WeightFormat::kQ8_0, "q8_0"}),
                         [](const auto& test) { return std::string(test.param.stem); });

TEST_P(QuantGolden, DecodesToTheBitsOfTheGgufPackage) {
  const auto [format, stem] = GetParam();
  const auto blocks = read_golden<std::byte>(std::string(stem) + ".blocks");
  const auto expected = read_golden<float>(std::string(stem) + ".f32");
  const auto k = static_cast<int64_t>(expected.size());
  ASSERT_EQ(row_bytes(format, k), static_cast<int64_t>(blocks.size()));
  std::vector<float> values(expected.size());
  dequantize_row(format, blocks.data(), k, values.data());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(values[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected[i])) << i;
    }
  }
}

TEST_P(QuantGolden, EncodesToTheBytesOfTheGgufPackage) {
  const auto [format, stem] = GetParam();
  const auto rows = read_golden<float>("encode.f32");
  const auto expected = read_golden<std::byte>(std::string("encode.") + stem);
  const auto k = static_cast<int64_t>(rows.size());
  ASSERT_EQ(row_bytes(format, k), static_cast<int64_t>(expected.size()));
  std::vector<std::byte> bytes(expected.size());
  quantize_row(format, rows.data(), k, bytes.data());
  const int64_t block_bytes = format_info(format).block_bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(bytes[i], expected[i]) << "block " << static_cast<int64_t>(i) / block_bytes
                                     << " byte " << static_cast<int64_t>(i) % block_bytes;
  }
}

TEST_P(QuantGolden, DoubleDecodingRoundsToTheFloatOne) {
  const auto [format, stem] = GetParam();
  const auto blocks = read_golden<std::byte>(std::string(stem) + ".blocks");
  const auto expected = read_golden<float>(std::string(stem) + ".f32");
  const auto k = static_cast<int64_t>(expected.size());
  std::vector<double> values(expected.size());
  dequantize_row_f64(format, blocks.data(), k, values.data());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(values[i])) << i;
    } else {
      // code * scale is exact in float (4 or 8 bits times 11), so the one rounding is the sum's.
      ASSERT_EQ(static_cast<float>(values[i]), expected[i]) << i;
    }
  }
}

TEST(QuantReference, SingleFloatsPassUnchanged) {
  const float values[3] = {1.5F, -0.0F, 3e-39F};
  std::byte row[12];
  quantize_row(WeightFormat::kF32, values, 3, row);
  float out[3];
  dequantize_row(WeightFormat::kF32, row, 3, out);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(values[i]));
  }
}

TEST(QuantReference, RowsNeedNoAlignment) {
  std::mt19937 random(7);
  for (const FormatInfo& info : format_table()) {
    const int64_t bytes = row_bytes(info.format, 64);
    std::vector<std::byte> aligned(static_cast<size_t>(bytes));
    std::vector<float> values(64);
    for (float& value : values) value = static_cast<float>(random() % 1000) * 0.01F;
    quantize_row(info.format, values.data(), 64, aligned.data());
    std::vector<std::byte> shifted(static_cast<size_t>(bytes) + 1);
    quantize_row(info.format, values.data(), 64, shifted.data() + 1);
    EXPECT_TRUE(std::equal(aligned.begin(), aligned.end(), shifted.begin() + 1)) << info.name;
    std::vector<float> a(64), b(64);
    dequantize_row(info.format, aligned.data(), 64, a.data());
    dequantize_row(info.format, shifted.data() + 1, 64, b.data());
    EXPECT_EQ(a, b) << info.name;
  }
}

}  // namespace
}  // namespace sluice
