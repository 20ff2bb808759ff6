// SPDX-License-Identifier: Apache-2.0
#include "quant/repack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace sluice {
namespace {

std::vector<std::byte> random_matrix(WeightFormat format, int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> row(static_cast<size_t>(k));
  const int64_t bytes = row_bytes(format, k);
  std::vector<std::byte> matrix(static_cast<size_t>(n * bytes));
  for (int64_t i = 0; i < n; ++i) {
    for (float& value : row) value = static_cast<float>(static_cast<int>(random() % 2001) - 1000);
    quantize_row(format, row.data(), k, matrix.data() + i * bytes);
  }
  return matrix;
}

float load_half(const std::byte* at) {
  uint16_t half = 0;
  std::memcpy(&half, at, sizeof(half));
  return half_to_float(half);
}

// The weight at (row, column), read straight from the layout that repack.h describes.
float packed_at(
    WeightFormat format, const std::byte* data, int64_t k, int64_t row, int64_t column) {
  const int64_t num_groups = (k + 31) / 32;
  const int64_t j = column % 32;
  const int64_t r = row % 16;
  const std::byte* group =
      data + (row / 16 * num_groups + column / 32) * packed_group_bytes(format);
  switch (format) {
    case WeightFormat::kF32: {
      float value = 0;
      std::memcpy(&value, group + (j * 16 + r) * 4, 4);
      return value;
    }
    case WeightFormat::kF16:
      return load_half(group + (j * 16 + r) * 2);
    case WeightFormat::kQ8_0: {
      const auto code = static_cast<int>(group[j / 4 * 64 + r * 4 + j % 4]) - 128;
      return static_cast<float>(code) * load_half(group + 512 + r * 2);
    }
    case WeightFormat::kQ4_1: {
      const auto byte = static_cast<int>(group[j % 16 / 4 * 64 + r * 4 + j % 4]);
      const int code = j < 16 ? byte & 15 : byte >> 4;
      return static_cast<float>(code) * load_half(group + 256 + r * 2) +
             load_half(group + 288 + r * 2);
    }
  }
  return 0;
}

struct PackCase {
  WeightFormat format;
  int64_t n, k;
};

class PackWeight : public testing::TestWithParam<PackCase> {};

INSTANTIATE_TEST_SUITE_P(Shapes,
                         PackWeight,
                         testing::Values(PackCase{WeightFormat::kF32, 16, 32},
                                         PackCase{WeightFormat::kF32, 33, 45},
                                         PackCase{WeightFormat::kF16, 5, 1},
                                         PackCase{WeightFormat::kF16, 48, 96},
                                         PackCase{WeightFormat::kQ8_0, 16, 32},
                                         PackCase{WeightFormat::kQ8_0, 49, 160},
                                         PackCase{WeightFormat::kQ4_1, 16, 32},
                                         PackCase{WeightFormat::kQ4_1, 31, 96}),
                         [](const auto& test) {
                           return std::string(format_info(test.param.format).name) + "_" +
                                  std::to_string(test.param.n) + "x" + std::to_string(test.param.k);
                         });

TEST_P(PackWeight, EveryWeightIsWhereTheLayoutSays) {
  const auto [format, n, k] = GetParam();
  const auto matrix = random_matrix(format, n, k, 11);
  std::vector<std::byte> packed(static_cast<size_t>(packed_bytes(format, n, k)), std::byte{0xa5});
  pack_weight(format, matrix.data(), n, k, 0, (n + 15) / 16, packed.data());
  std::vector<float> row(static_cast<size_t>(k));
  const int64_t padded_n = (n + 15) / 16 * 16;
  const int64_t padded_k = (k + 31) / 32 * 32;
  for (int64_t i = 0; i < padded_n; ++i) {
    if (i < n) dequantize_row(format, matrix.data() + i * row_bytes(format, k), k, row.data());
    for (int64_t j = 0; j < padded_k; ++j) {
      const float expected = i < n && j < k ? row[static_cast<size_t>(j)] : 0.0F;
      ASSERT_EQ(packed_at(format, packed.data(), k, i, j), expected) << i << "," << j;
    }
  }
}

TEST_P(PackWeight, TilesPackedApartEqualTilesPackedTogether) {
  const auto [format, n, k] = GetParam();
  const auto matrix = random_matrix(format, n, k, 12);
  const auto bytes = static_cast<size_t>(packed_bytes(format, n, k));
  std::vector<std::byte> together(bytes, std::byte{1});
  std::vector<std::byte> apart(bytes, std::byte{2});
  const int64_t num_tiles = (n + 15) / 16;
  pack_weight(format, matrix.data(), n, k, 0, num_tiles, together.data());
  for (int64_t tile = num_tiles; tile-- > 0;) {
    pack_weight(format, matrix.data(), n, k, tile, tile + 1, apart.data());
  }
  EXPECT_EQ(together, apart);
}

TEST(PackWeightSizes, GroupsAreWholeCacheLines) {
  for (const FormatInfo& info : format_table()) {
    EXPECT_EQ(packed_group_bytes(info.format) % 64, 0) << info.name;
  }
  EXPECT_EQ(packed_group_bytes(WeightFormat::kQ8_0), 576);
  EXPECT_EQ(packed_group_bytes(WeightFormat::kQ4_1), 320);
}

TEST(PackWeightSizes, PaddingIsAZeroWeight) {
  const auto matrix = random_matrix(WeightFormat::kQ8_0, 1, 32, 13);
  std::vector<std::byte> packed(576, std::byte{0xff});
  pack_weight(WeightFormat::kQ8_0, matrix.data(), 1, 32, 0, 1, packed.data());
  EXPECT_EQ(packed[4], std::byte{128});       // row 1, k 0: code 0
  EXPECT_EQ(packed[512 + 2], std::byte{0});   // its scale
  EXPECT_EQ(packed[512 + 32], std::byte{0});  // the pad after the scales
}

}  // namespace
}  // namespace sluice
