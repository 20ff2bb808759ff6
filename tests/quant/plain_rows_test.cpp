// SPDX-License-Identifier: Apache-2.0
#include "quant/plain_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace sluice {
namespace {

// A matrix's rows, with memory of their own.
struct OwnRows {
  std::vector<uint8_t> codes, zeros;
  std::vector<float> scales, row_scales;
  PlainRows view;
};

struct PlainCase {
  const char* name;
  WeightFormat format;
  CodeKind code;
  int32_t group;
  bool zeros;
  int64_t k;
  bool row_scales = false;
  bool int8_rows = false;
};

// Returns a scale that a checkpoint of such codes may have.
float random_scale(CodeKind code, int32_t group, std::mt19937& random) {
  const auto draw = static_cast<int>(random() & 0xFFFF);
  if (code == CodeKind::kE2M1 && group == 16) {  // every finite value of e4m3
    const int exponent = draw >> 3 & 15;
    const int fraction = exponent == 15 ? draw % 7 : draw & 7;
    const float magnitude = exponent == 0
                                ? std::ldexp(static_cast<float>(fraction), -9)
                                : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    return (draw & 0x80) != 0 ? -magnitude : magnitude;
  }
  if (code == CodeKind::kE2M1) return std::ldexp(1.0F, draw % 255 - 127);
  return (static_cast<float>(draw) + 1.0F) * 0x1.234568p-20F;
}

OwnRows random_rows(const PlainCase& c, int32_t n, uint32_t seed) {
  std::mt19937 random(seed);
  OwnRows rows;
  rows.view = {.code = c.code, .rows = n, .k = c.k, .group = c.group};
  rows.codes.resize(static_cast<size_t>(n * c.k));
  const bool nibbles = c.code == CodeKind::kInt4 || c.code == CodeKind::kE2M1;
  for (uint8_t& code : rows.codes) {
    code = static_cast<uint8_t>(random() & (nibbles ? 15U : 255U));
    if (c.code == CodeKind::kE4M3 && (code & 0x7F) == 0x7F) code = 0x7E;
  }
  const auto count = static_cast<size_t>(n * rows.view.scales_per_row());
  for (size_t i = 0; i < count; ++i) {
    rows.scales.push_back(random_scale(c.code, c.group, random));
    rows.zeros.push_back(
        static_cast<uint8_t>(c.code == CodeKind::kInt4 ? random() % 17 : random() & 255U));
  }
  for (int32_t r = 0; r < n; ++r) {
    rows.row_scales.push_back(0.001F * static_cast<float>(random() % 1000 + 1));
  }
  rows.view.codes = rows.codes.data();
  rows.view.scales = rows.scales.data();
  if (c.zeros) rows.view.zeros = rows.zeros.data();
  if (c.row_scales) rows.view.row_scales = rows.row_scales.data();
  return rows;
}

// --- The values of a layout, read by layout.h's description -----------------------------------

double float_at(const std::byte* at) {
  float value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

int byte_at(const std::byte* at) { return static_cast<int>(*at); }

double e4m3_value(int code) {
  const int exponent = code >> 3 & 15;
  const double magnitude =
      exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(8 + (code & 7), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Returns the nibble of weight (r, j) in a group's 256 bytes.
int nibble_at(const std::byte* codes, int64_t r, int64_t j) {
  const int64_t chunk = j / 4;
  return byte_at(codes + chunk % 4 * 64 + r * 4 + j % 4) >> (chunk < 4 ? 0 : 4) & 15;
}

double doubled_e2m1(int code) {
  constexpr int kMagnitudes[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

double nvfp4_at(const std::byte* tile, int64_t r, int64_t column) {
  const std::byte* block = tile + 64 + column / 64 * 576;
  const int64_t group = column / 32 % 2;
  const int64_t j = column % 32;
  const double scale = e4m3_value(byte_at(block + 512 + group * 32 + j / 16 * 16 + r));
  return doubled_e2m1(nibble_at(block + group * 256, r, j)) / 2 * scale * float_at(tile + r * 4);
}

double mxfp4_at(const std::byte* tile, int64_t r, int64_t column) {
  const std::byte* block = tile + column / 128 * 1088;
  const int64_t group = column / 32 % 4;
  const int exponent = byte_at(block + 1024 + group * 16 + r);
  return std::ldexp(doubled_e2m1(nibble_at(block + group * 256, r, column % 32)), exponent - 128);
}

double int4_32_at(const std::byte* tile, int64_t r, int64_t column) {
  const std::byte* block = tile + column / 128 * 1344;
  const int64_t group = column / 32 % 4;
  const int zero = byte_at(block + 1280 + group * 16 + r);
  return (nibble_at(block + group * 256, r, column % 32) - zero) *
         float_at(block + 1024 + (group * 16 + r) * 4);
}

double int4_128_at(const std::byte* tile, int64_t r, int64_t column) {
  const std::byte* block = tile + column / 256 * 2240;
  const int64_t half = column / 128 % 2;
  const int zero = byte_at(block + 2048 + 128 + half * 16 + r);
  return (nibble_at(block + column / 32 % 8 * 256, r, column % 32) - zero) *
         float_at(block + 2048 + (half * 16 + r) * 4);
}

int whole_byte_at(const std::byte* codes, int64_t r, int64_t j) {
  return byte_at(codes + j / 4 * 64 + r * 4 + j % 4);
}

double int8_32_at(const std::byte* tile, int64_t r, int64_t column) {
  const std::byte* block = tile + column / 128 * 2368;
  const int64_t group = column / 32 % 4;
  const int zero = byte_at(block + 2304 + group * 16 + r);
  return (whole_byte_at(block + group * 512, r, column % 32) - zero) *
         float_at(block + 2048 + (group * 16 + r) * 4);
}

double int8_channel_at(const std::byte* tile, int64_t r, int64_t column) {
  const std::byte* codes = tile + 64 + column / 32 * 512;
  return (whole_byte_at(codes, r, column % 32) - 128) * float_at(tile + r * 4);
}

double pair_at(const std::byte* codes, int64_t r, int64_t j) {
  const int64_t byte = j % 4;
  return e4m3_value(byte_at(codes + j / 4 * 64 + r / 4 * 16 + byte / 2 * 8 + r % 4 * 2 + byte % 2));
}

double e4m3_channel_at(const std::byte* tile, int64_t r, int64_t column) {
  return pair_at(tile + 64 + column / 32 * 512, r, column % 32) * float_at(tile + r * 4);
}

double e4m3_block_at(const std::byte* tile, int64_t r, int64_t column) {
  const std::byte* block = tile + column / 128 * 2112;
  return pair_at(block + column / 32 % 4 * 512, r, column % 32) * float_at(block + 2048 + r * 4);
}

double value_at(WeightFormat format, const std::byte* tile, int64_t r, int64_t column) {
  switch (format) {
    case WeightFormat::kNVFP4:
      return nvfp4_at(tile, r, column);
    case WeightFormat::kMXFP4:
      return mxfp4_at(tile, r, column);
    case WeightFormat::kInt4Group32:
      return int4_32_at(tile, r, column);
    case WeightFormat::kInt4Group128:
      return int4_128_at(tile, r, column);
    case WeightFormat::kInt8Group32:
      return int8_32_at(tile, r, column);
    case WeightFormat::kInt8Channel:
      return int8_channel_at(tile, r, column);
    case WeightFormat::kE4M3Channel:
      return e4m3_channel_at(tile, r, column);
    case WeightFormat::kE4M3Block:
      return e4m3_block_at(tile, r, column);
    default:
      ADD_FAILURE() << "no layout";
      return 0;
  }
}

using F = WeightFormat;
using C = CodeKind;

const std::vector<PlainCase> kCases = {
    {"Nvfp4", F::kNVFP4, C::kE2M1, 16, false, 208, true},
    {"Nvfp4WithoutRowScales", F::kNVFP4, C::kE2M1, 16, false, 64},
    {"Mxfp4", F::kMXFP4, C::kE2M1, 32, false, 160},
    {"Int4Per32", F::kInt4Group32, C::kInt4, 32, true, 160},
    {"Int4Per64Symmetric", F::kInt4Group32, C::kInt4, 64, false, 192},
    {"Int4Per128", F::kInt4Group128, C::kInt4, 128, true, 640},
    {"Int4Per256", F::kInt4Group128, C::kInt4, 256, true, 768},
    {"Int4PerRow", F::kInt4Group128, C::kInt4, 0, false, 232},
    {"Int4PerRowWithZeros", F::kInt4Group128, C::kInt4, 0, true, 72},
    {"Int8Per32", F::kInt8Group32, C::kInt8, 32, true, 96},
    {"Int8Per128", F::kInt8Group32, C::kInt8, 128, false, 384},
    {"Int8PerRow", F::kInt8Group32, C::kInt8, 0, true, 77},
    {"Int8PerRowOfInt8Rows", F::kInt8Channel, C::kInt8, 0, false, 77, false, true},
    {"Fp8PerRow", F::kE4M3Channel, C::kE4M3, 0, false, 77},
    {"Fp8Per128", F::kE4M3Block, C::kE4M3, 128, false, 333},
};

class PackPlain : public ::testing::TestWithParam<PlainCase> {};

INSTANTIATE_TEST_SUITE_P(Formats, PackPlain, ::testing::ValuesIn(kCases), [](const auto& test) {
  return std::string(test.param.name);
});

TEST_P(PackPlain, IsTheFormatOfItsCodes) {
  const PlainCase& c = GetParam();
  EXPECT_EQ(plain_format(c.code, c.group, c.zeros, c.int8_rows), c.format);
}

TEST_P(PackPlain, EveryWeightIsWhereTheLayoutSays) {
  const PlainCase& c = GetParam();
  for (const int32_t n : {1, 13, 16}) {
    const OwnRows rows = random_rows(c, n, 21);
    std::vector<std::byte> tile(static_cast<size_t>(packed_bytes(c.format, n, c.k)),
                                std::byte{0xa5});
    pack_plain(c.format, rows.view, tile.data());
    const int64_t padded_k = (c.k + 31) / 32 * 32;
    for (int64_t r = 0; r < 16; ++r) {
      for (int64_t j = 0; j < padded_k; ++j) {
        const double expected = r < n && j < c.k ? plain_value(rows.view, r, j) : 0.0;
        // A zero point of 16 is beyond all codes of 4 bits, so no code weighs 0.
        const auto last = static_cast<size_t>((r + 1) * rows.view.scales_per_row() - 1);
        if (c.zeros && r < n && j >= c.k && rows.zeros[last] > 15) continue;
        ASSERT_EQ(value_at(c.format, tile.data(), r, j), expected) << r << "," << j;
      }
    }
  }
}

TEST_P(PackPlain, GroupsPastKAreZeroBytes) {
  const PlainCase& c = GetParam();
  const OwnRows rows = random_rows(c, 16, 22);
  const PackedLayout& layout = layout_of(c.format);
  std::vector<std::byte> tile(static_cast<size_t>(packed_tile_bytes(c.format, c.k)),
                              std::byte{0xa5});
  pack_plain(c.format, rows.view, tile.data());
  const int64_t groups = (c.k + 31) / 32;
  const int64_t in_last = (groups - 1) % layout.groups_per_block + 1;
  const std::byte* block = tile.data() + tile.size() - layout.block_bytes();
  for (int64_t i = in_last * layout.code_bytes(); i < layout.groups_per_block * layout.code_bytes();
       ++i) {
    ASSERT_EQ(block[i], std::byte{0}) << i;
  }
}

// Cutting a share of K out of tiles or rows gives what packing its columns alone gives.
void expect_cut_as_packed_alone(PlainCase c, MatrixForm form) {
  c.k = 1024;
  const OwnRows whole = random_rows(c, 16, 23);
  const ColumnRange columns = columns_to_store(c.format, form, 288, 640, c.k);
  ASSERT_LE(columns.first, 288);
  ASSERT_GE(columns.first + columns.count, 640);
  OwnRows some = random_rows(c, 16, 23);
  some.view.k = columns.count;
  some.codes.clear();
  std::vector<float> scales;
  std::vector<uint8_t> zeros;
  const int64_t per_row = whole.view.scales_per_row();
  for (int64_t r = 0; r < 16; ++r) {
    for (int64_t j = 0; j < columns.count; ++j) {
      some.codes.push_back(whole.codes[static_cast<size_t>(r * c.k + columns.first + j)]);
    }
    for (int64_t i = 0; i < some.view.scales_per_row(); ++i) {
      const int64_t first = c.group == 0 ? 0 : columns.first / c.group;
      scales.push_back(whole.scales[static_cast<size_t>(r * per_row + first + i)]);
      zeros.push_back(whole.zeros[static_cast<size_t>(r * per_row + first + i)]);
    }
  }
  some.view.codes = some.codes.data();
  some.view.scales = scales.data();
  if (c.zeros) some.view.zeros = zeros.data();
  const auto laid_out = [&](const PlainRows& rows) {
    const bool in_rows = form == MatrixForm::kRows;
    const int64_t bytes =
        in_rows ? 16 * matrix_row_stride(c.format, rows.k) : packed_tile_bytes(c.format, rows.k);
    std::vector<std::byte> out(static_cast<size_t>(bytes), std::byte{0xEE});
    if (in_rows) {
      copy_plain_codes(c.format, rows, out.data());
    } else {
      pack_plain(c.format, rows, out.data());
    }
    return out;
  };
  const std::vector<std::byte> want = laid_out(some.view);
  std::vector<std::byte> got(want.size(), std::byte{0xDD});
  cut_columns(c.format, form, c.k, columns, 16, laid_out(whole.view).data(), got.data());
  EXPECT_EQ(got, want);
}

TEST_P(PackPlain, ColumnsAreCutAsPackedAlone) {
  const PlainCase c = GetParam();
  expect_cut_as_packed_alone(c, MatrixForm::kTiles);
  if (c.group > 0 && has_rows(c.format)) expect_cut_as_packed_alone(c, MatrixForm::kRows);
}

TEST(PlainRowsOfDevices, CodesAndScalesLieApart) {
  const PlainCase c = {"", F::kE4M3Block, C::kE4M3, 256, false, 600};
  const OwnRows rows = random_rows(c, 5, 24);
  ASSERT_EQ(matrix_row_stride(c.format, c.k), 608);
  ASSERT_EQ(matrix_row_scales(c.format, c.k), 5);
  ASSERT_EQ(matrix_scales_offset(c.format, 5, c.k), 3072);  // 5 * 608, to a multiple of 64
  ASSERT_EQ(matrix_bytes(c.format, 5, c.k), 3072 + 5 * 5 * 4);
  std::vector<std::byte> codes(5 * 608, std::byte{0xa5});
  std::vector<float> scales(25);
  copy_plain_codes(c.format, rows.view, codes.data());
  copy_plain_scales(c.format, rows.view, scales.data());
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t j = 0; j < 608; ++j) {
      const int expected = j < c.k ? rows.codes[static_cast<size_t>(r * c.k + j)] : 0;
      ASSERT_EQ(byte_at(&codes[static_cast<size_t>(r * 608 + j)]), expected);
    }
    for (int64_t i = 0; i < 5; ++i) {
      const float expected = rows.scales[static_cast<size_t>(r * 3 + i / 2)];
      ASSERT_EQ(scales[static_cast<size_t>(r * 5 + i)], expected);
    }
  }
  // Columns [256, 512) of 600 have scales 2 and 3.
  std::vector<float> cut(10);
  const ColumnRange columns = columns_to_store(c.format, MatrixForm::kRows, 288, 480, c.k);
  ASSERT_EQ(columns.first, 256);
  ASSERT_EQ(columns.count, 256);
  cut_row_scales(c.format, c.k, columns, 5, scales.data(), cut.data());
  for (size_t r = 0; r < 5; ++r) {
    EXPECT_EQ(cut[r * 2], scales[r * 5 + 2]);
    EXPECT_EQ(cut[r * 2 + 1], scales[r * 5 + 3]);
  }
}

TEST(PlainFormat, CodesWithoutAKernelHaveNone) {
  EXPECT_FALSE(plain_format(C::kInt4, 16, false, false));
  EXPECT_FALSE(plain_format(C::kInt8, 16, false, true));
  EXPECT_FALSE(plain_format(C::kE4M3, 32, false, false));  // MXFP8
  EXPECT_FALSE(plain_format(C::kE2M1, 0, false, false));
  EXPECT_EQ(plain_format(C::kInt8, 0, false, false), F::kInt8Group32);  // weights alone
  EXPECT_EQ(plain_format(C::kInt8, 0, true, true), F::kInt8Group32);
}

TEST(PlainValue, TakesZeroPointsOffBeforeItScales) {
  const uint8_t codes[] = {0, 15, 3};
  const float scales[] = {0.5F};
  const uint8_t zeros[] = {16};
  PlainRows rows = {.code = C::kInt4, .rows = 1, .k = 3, .codes = codes, .scales = scales};
  EXPECT_EQ(plain_value(rows, 0, 0), -4.0);
  EXPECT_EQ(plain_value(rows, 0, 2), -2.5);
  rows.zeros = zeros;
  EXPECT_EQ(plain_value(rows, 0, 1), -0.5);
  const uint8_t bytes[] = {0x80, 0x7F};
  const uint8_t zero[] = {0xFF};  // -1
  const PlainRows int8 = {
      .code = C::kInt8, .rows = 1, .k = 2, .codes = bytes, .scales = scales, .zeros = zero};
  EXPECT_EQ(plain_value(int8, 0, 0), -63.5);
  EXPECT_EQ(plain_value(int8, 0, 1), 64.0);
  const float row_scales[] = {4.0F};
  const uint8_t fp4[] = {7, 8 + 1};
  const PlainRows e2m1 = {.code = C::kE2M1,
                          .rows = 1,
                          .k = 2,
                          .codes = fp4,
                          .group = 16,
                          .scales = scales,
                          .row_scales = row_scales};
  EXPECT_EQ(plain_value(e2m1, 0, 0), 12.0);
  EXPECT_EQ(plain_value(e2m1, 0, 1), -1.0);
}

TEST(PackPlainDeathTest, AScaleThatTheFormatHasNotIsABug) {
  const std::vector<uint8_t> codes(32);
  const float scales[] = {0.3F, 1.0F};
  std::vector<std::byte> tile(4096);
  const PlainRows rows = {
      .code = C::kE2M1, .rows = 1, .k = 32, .codes = codes.data(), .group = 16, .scales = scales};
  EXPECT_DEATH(pack_plain(F::kNVFP4, rows, tile.data()), "CHECK failed");
}

}  // namespace
}  // namespace sluice
