// SPDX-License-Identifier: Apache-2.0
#include "quant/repack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

// Returns random bytes with finite scales.
std::vector<std::byte> random_matrix(WeightFormat format, int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  const FormatInfo& info = format_info(format);
  std::vector<std::byte> matrix(static_cast<size_t>(n * row_bytes(format, k)));
  for (std::byte& byte : matrix) byte = static_cast<std::byte>(random() & 0xFF);
  const auto block_bytes = static_cast<size_t>(info.block_bytes);
  const PackedLayout& layout = layout_of(format);
  const int32_t num_halves = layout.is_integer() ? layout.num_half_scales() : info.block_bytes / 2;
  for (size_t block = 0; block < matrix.size(); block += block_bytes) {
    for (int32_t i = 0; i < num_halves; ++i) {
      // Scales stay below 0x7C00 and, as the upper half of a float or as bf16, below infinity.
      const auto half = static_cast<uint16_t>(random() & 0xBBFF);
      std::memcpy(&matrix[block + static_cast<size_t>(info.scale_offset + 2 * i)], &half, 2);
    }
  }
  return matrix;
}

float load_half(const std::byte* at) {
  uint16_t half = 0;
  std::memcpy(&half, at, sizeof(half));
  return half_to_float(half);
}

// One weight's place: the group's codes and scales and the super-block's scales.
struct Place {
  const std::byte* codes;
  const std::byte* scales;
  const std::byte* super;
  int64_t r, j;  // row in the tile, column in the group
};

// Returns bits [shift, shift + bits) of the byte of chunk j / 4 in register `reg`.
int plane_bits(const Place& at, int64_t reg, int64_t shift, int bits) {
  const auto byte = static_cast<int>(at.codes[reg * 64 + at.r * 4 + at.j % 4]);
  return (byte >> shift) & ((1 << bits) - 1);
}

int signed_byte(std::byte byte) { return static_cast<int8_t>(byte); }

// Bits per code in the low and high plane, and bytes of scales per group, by layout.h's table.
struct Layout {
  int low, high;
  int64_t groups, scale_bytes, super_bytes;
};

Layout layout_by_hand(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return {32, 0, 1, 0, 0};
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return {16, 0, 1, 0, 0};
    case WeightFormat::kQ4_0:
    case WeightFormat::kIQ4_NL:
      return {4, 0, 2, 32, 0};
    case WeightFormat::kQ4_1:
      return {4, 0, 1, 64, 0};
    case WeightFormat::kQ5_0:
      return {4, 1, 2, 32, 0};
    case WeightFormat::kQ5_1:
      return {4, 1, 1, 64, 0};
    case WeightFormat::kQ8_0:
      return {8, 0, 2, 32, 0};
    case WeightFormat::kQ2_K:
      return {2, 0, 8, 32, 64};
    case WeightFormat::kQ3_K:
      return {2, 1, 8, 32, 64};
    case WeightFormat::kQ4_K:
      return {4, 0, 8, 32, 64};
    case WeightFormat::kQ5_K:
      return {4, 1, 8, 32, 64};
    case WeightFormat::kQ6_K:
      return {4, 2, 8, 32, 64};
    case WeightFormat::kIQ4_XS:
      return {4, 0, 8, 16, 64};
    case WeightFormat::kMXFP4:
      return {4, 0, 4, 16, 0};
    default:
      break;  // rows without blocks: plain_rows_test.cpp
  }
  return {};
}

int stored_code(const Layout& layout, const Place& at) {
  const int64_t c = at.j / 4;
  int code = 0;
  if (layout.low == 8) code = plane_bits(at, c, 0, 8);
  if (layout.low == 4) code = plane_bits(at, c % 4, c < 4 ? 0 : 4, 4);
  if (layout.low == 2) code = plane_bits(at, c / 4, c % 4 * 2, 2);
  if (layout.high == 1) code += plane_bits(at, layout.low, c, 1) << layout.low;
  if (layout.high == 2) code += plane_bits(at, layout.low + c / 4, c % 4 * 2, 2) << layout.low;
  return code;
}

// Returns code * scale (+ minimum), both read from the layout.
float integer_at(WeightFormat format, const Layout& layout, const Place& at) {
  const auto value = static_cast<float>(layout_of(format).value_of(stored_code(layout, at)));
  if (format == WeightFormat::kMXFP4) {
    return value * std::ldexp(1.0F, static_cast<int>(at.scales[at.r]) - 128);
  }
  if (layout.super_bytes == 0) {
    const float product = value * load_half(at.scales + at.r * 2);
    return layout_of(format).has_min() ? product + load_half(at.scales + 32 + at.r * 2) : product;
  }
  const float scale = load_half(at.super + at.r * 2);
  const std::byte half = at.scales[at.j / 16 * 16 + at.r];
  switch (format) {
    case WeightFormat::kIQ4_XS:
      return static_cast<float>(signed_byte(at.scales[at.r])) * scale * value;
    case WeightFormat::kQ3_K:
    case WeightFormat::kQ6_K:
      return static_cast<float>(signed_byte(half)) * scale * value;
    default:
      break;
  }
  const float min = load_half(at.super + 32 + at.r * 2);
  const bool nibbles = format == WeightFormat::kQ2_K;
  const int sub_scale =
      nibbles ? static_cast<int>(half & std::byte{15}) : static_cast<int>(at.scales[at.r]);
  const int sub_min =
      nibbles ? static_cast<int>(half >> 4) : static_cast<int>(at.scales[16 + at.r]);
  return static_cast<float>(sub_scale) * scale * value - static_cast<float>(sub_min) * min;
}

// The weight at (row, column), read straight from the layout that layout.h describes.
float packed_at(
    WeightFormat format, const std::byte* data, int64_t k, int64_t row, int64_t column) {
  const Layout layout = layout_by_hand(format);
  const int64_t code_bytes = (layout.low + layout.high) * 64;
  const int64_t block_bytes =
      layout.groups * (code_bytes + layout.scale_bytes) + layout.super_bytes;
  const int64_t num_blocks = ((k + 31) / 32 + layout.groups - 1) / layout.groups;
  const int64_t group = column / 32;
  const int64_t in_block = group % layout.groups;
  const std::byte* block = data + (row / 16 * num_blocks + group / layout.groups) * block_bytes;
  const Place at{.codes = block + in_block * code_bytes,
                 .scales = block + layout.groups * code_bytes + in_block * layout.scale_bytes,
                 .super = block + layout.groups * (code_bytes + layout.scale_bytes),
                 .r = row % 16,
                 .j = column % 32};
  if (format == WeightFormat::kF32) {
    float value = 0;
    std::memcpy(&value, at.codes + (at.j * 16 + at.r) * 4, 4);
    return value;
  }
  if (layout.low == 16) {
    uint16_t bits = 0;
    std::memcpy(&bits, at.codes + (at.j * 16 + at.r) * 2, 2);
    return format == WeightFormat::kF16 ? half_to_float(bits) : bf16_to_float(bits);
  }
  return integer_at(format, layout, at);
}

struct PackCase {
  WeightFormat format;
  int64_t n, k;
};

// Ragged shapes of every format; K of one block, and of several that end inside a layout block.
std::vector<PackCase> pack_cases() {
  std::vector<PackCase> cases;
  for (const FormatInfo& info : format_table()) {
    const int64_t unit = layout_of(info.format).is_integer() ? info.block_elements : 15;
    cases.push_back({info.format, 16, unit});
    cases.push_back({info.format, 33, 3 * unit});
  }
  return cases;
}

class PackWeight : public ::testing::TestWithParam<PackCase> {};

INSTANTIATE_TEST_SUITE_P(Shapes,
                         PackWeight,
                         ::testing::ValuesIn(pack_cases()),
                         [](const auto& test) {
  return std::string(format_info(test.param.format).name) + "_" + std::to_string(test.param.n) +
         "x" + std::to_string(test.param.k);
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

// Borders inside of blocks widen the share to whole blocks; packing its columns alone is equal.
void expect_cut_as_packed_alone(WeightFormat format, MatrixForm form) {
  constexpr int64_t kN = 21;
  constexpr int64_t kK = 768;
  const std::vector<std::byte> source = random_matrix(format, kN, kK, 12);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 96}, {288, 480}, {672, 768}}) {
    const ColumnRange columns = columns_to_store(format, form, begin, end, kK);
    ASSERT_LE(columns.first, begin);
    ASSERT_GE(columns.first + columns.count, end);
    ASSERT_LE(columns.count, end - begin + 2 * 256);
    const int64_t bytes = row_bytes(format, columns.count);
    std::vector<std::byte> some(static_cast<size_t>(kN * bytes));
    for (int64_t row = 0; row < kN; ++row) {
      std::memcpy(&some[static_cast<size_t>(row * bytes)],
                  &source[static_cast<size_t>(row * row_bytes(format, kK) +
                                              row_bytes(format, columns.first))],
                  static_cast<size_t>(bytes));
    }
    const auto laid_out = [&](const std::vector<std::byte>& rows, int64_t k) {
      const bool in_rows = form == MatrixForm::kRows;
      const int64_t size =
          in_rows ? kN * matrix_row_stride(format, k) : packed_bytes(format, kN, k);
      std::vector<std::byte> out(static_cast<size_t>(size), std::byte{0xEE});
      if (in_rows) {
        copy_matrix_rows(format, rows.data(), k, 0, kN, out.data());
      } else {
        pack_weight(format, rows.data(), kN, k, 0, 2, out.data());
      }
      return out;
    };
    const std::vector<std::byte> want = laid_out(some, columns.count);
    std::vector<std::byte> got(want.size(), std::byte{0xDD});
    cut_columns(format, form, kK, columns, kN, laid_out(source, kK).data(), got.data());
    EXPECT_EQ(got, want) << begin;
  }
}

TEST(CutColumns, AreThosePackedAlone) {
  for (const FormatInfo& info : format_table()) {
    SCOPED_TRACE(std::string(info.name));
    expect_cut_as_packed_alone(info.format, MatrixForm::kTiles);
    if (has_rows(info.format)) expect_cut_as_packed_alone(info.format, MatrixForm::kRows);
  }
}

TEST(PackWeightSizes, AreNearTheCheckpoints) {
  for (const FormatInfo& info : format_table()) {
    const auto checkpoint = static_cast<double>(16 * row_bytes(info.format, 1024));
    const auto packed = static_cast<double>(packed_bytes(info.format, 16, 1024));
    EXPECT_GE(packed, checkpoint * 0.99) << info.name;
    EXPECT_LE(packed, checkpoint * 1.06) << info.name;
  }
  EXPECT_EQ(packed_bytes(WeightFormat::kQ4_1, 16, 32), 320);
  EXPECT_EQ(packed_bytes(WeightFormat::kQ4_K, 16, 256), 2368);
}

}  // namespace
}  // namespace sluice
