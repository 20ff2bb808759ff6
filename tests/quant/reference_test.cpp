// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <set>
#include <string>

#include "quant/format.h"
#include "tests/quant/golden.h"

namespace sluice {
namespace {

struct GoldenFormat {
  WeightFormat format;
  const char* stem;
};

class QuantGolden : public ::testing::TestWithParam<GoldenFormat> {};

constexpr GoldenFormat kEncoded[] = {
    {WeightFormat::kF16, "f16"}, {WeightFormat::kQ4_1, "q4_1"}, {WeightFormat::kQ8_0, "q8_0"}};
constexpr GoldenFormat kDecodedOnly[] = {{WeightFormat::kBF16, "bf16"},
                                         {WeightFormat::kQ4_0, "q4_0"},
                                         {WeightFormat::kQ5_0, "q5_0"},
                                         {WeightFormat::kQ5_1, "q5_1"},
                                         {WeightFormat::kQ2_K, "q2_k"},
                                         {WeightFormat::kQ3_K, "q3_k"},
                                         {WeightFormat::kQ4_K, "q4_k"},
                                         {WeightFormat::kQ5_K, "q5_k"},
                                         {WeightFormat::kQ6_K, "q6_k"},
                                         {WeightFormat::kIQ4_NL, "iq4_nl"},
                                         {WeightFormat::kIQ4_XS, "iq4_xs"},
                                         {WeightFormat::kMXFP4, "mxfp4"}};

std::string stem_of(const ::testing::TestParamInfo<GoldenFormat>& test) { return test.param.stem; }

INSTANTIATE_TEST_SUITE_P(Encoded, QuantGolden, ::testing::ValuesIn(kEncoded), stem_of);
INSTANTIATE_TEST_SUITE_P(DecodedOnly, QuantGolden, ::testing::ValuesIn(kDecodedOnly), stem_of);

class QuantEncodeGolden : public QuantGolden {};

INSTANTIATE_TEST_SUITE_P(Formats, QuantEncodeGolden, ::testing::ValuesIn(kEncoded), stem_of);

TEST(QuantGoldens, CoverEveryFormatButF32) {
  std::set<WeightFormat> covered = {WeightFormat::kF32};
  for (const GoldenFormat& golden : kEncoded) covered.insert(golden.format);
  for (const GoldenFormat& golden : kDecodedOnly) covered.insert(golden.format);
  EXPECT_EQ(covered.size(), format_table().size());
}

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

TEST_P(QuantEncodeGolden, EncodesToTheBytesOfTheGgufPackage) {
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

// The inverse of such a block's scale is infinite, and its scale in fp16 is 0.
TEST(Quant, ABlockOfNextToNothingIsZero) {
  std::vector<float> row(kQuantGroup, 1e-39F);
  row[3] = 0;
  row[5] = -1e-39F;
  for (const WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_1}) {
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(format, kQuantGroup)));
    quantize_row(format, row.data(), kQuantGroup, bytes.data());
    std::vector<float> values(kQuantGroup, 1.0F);
    dequantize_row(format, bytes.data(), kQuantGroup, values.data());
    EXPECT_EQ(values, std::vector<float>(kQuantGroup, 0.0F)) << format_info(format).name;
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
      // In float at most one operation rounds: code * scale, or the sum if the product is exact.
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
    const int64_t k = 2 * info.block_elements;
    std::vector<std::byte> aligned(static_cast<size_t>(row_bytes(info.format, k)));
    for (std::byte& byte : aligned) byte = static_cast<std::byte>(random() & 0x3F);  // all finite
    std::vector<std::byte> shifted(aligned.size() + 1);
    std::copy(aligned.begin(), aligned.end(), shifted.begin() + 1);
    std::vector<float> a(static_cast<size_t>(k)), b(static_cast<size_t>(k));
    dequantize_row(info.format, aligned.data(), k, a.data());
    dequantize_row(info.format, shifted.data() + 1, k, b.data());
    EXPECT_EQ(a, b) << info.name;
  }
}

}  // namespace
}  // namespace sluice
