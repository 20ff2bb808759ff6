// SPDX-License-Identifier: Apache-2.0
#include "quant/plain_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "quant/kv_code.h"

namespace sluice {
namespace {

constexpr int32_t kNumChunks = 8;
constexpr uint8_t kFlip = 0x80;  // an int8 to a stored code
constexpr uint8_t kInt4Zero = 8;

int64_t scale_index(const PlainRows& rows, int64_t row, int64_t column) {
  return row * rows.scales_per_row() + (rows.group == 0 ? 0 : column / rows.group);
}

float scale_at(const PlainRows& rows, int64_t row, int64_t column) {
  return rows.scales[scale_index(rows, row, column)];
}

// Returns the zero point in the form of the codes; with kInt8 two's complement.
uint8_t zero_at(const PlainRows& rows, int64_t row, int64_t column) {
  if (rows.zeros == nullptr) return rows.code == CodeKind::kInt4 ? kInt4Zero : 0;
  return rows.zeros[scale_index(rows, row, column)];
}

uint8_t stored(CodeKind code, uint8_t byte) {
  return code == CodeKind::kInt8 ? static_cast<uint8_t>(byte ^ kFlip) : byte;
}

void check_rows(WeightFormat format, const PlainRows& rows) {
  const PackedLayout& layout = layout_of(format);
  CHECK(plain_code(format) == rows.code);
  const int32_t columns = layout.columns_per_scale();
  CHECK(rows.group == 0 || (columns != 0 && rows.group % columns == 0));
  CHECK(rows.zeros == nullptr || columns != 0);
}

uint8_t code_of_scale(float scale) {
  CHECK(std::fabs(scale) <= 448.0F);
  const uint8_t code = e4m3_code(scale);
  CHECK(e4m3_to_float(code) == scale);
  return code;
}

// Returns the exponent byte of a power of two.
uint8_t exponent_of(float scale) {
  const auto bits = std::bit_cast<uint32_t>(scale);
  if (bits == 0x00400000U) return 0;  // 2^-127, subnormal
  CHECK((bits & 0x807FFFFFU) == 0 && bits >= 0x00800000U && bits < 0x7F800000U);
  return static_cast<uint8_t>(bits >> 23);
}

// Returns a row's stored codes of one group, with the code of weight 0 past k.
std::array<uint32_t, kNumChunks> chunks_of(const PlainRows& rows, int64_t row, int64_t first) {
  std::array<uint8_t, kQuantGroup> codes;
  const int64_t count = std::min<int64_t>(kQuantGroup, rows.k - first);
  std::memcpy(codes.data(), rows.codes + row * rows.k + first, static_cast<size_t>(count));
  if (count < kQuantGroup) {
    uint8_t weightless = zero_at(rows, row, rows.k - 1);
    if (rows.code == CodeKind::kInt4) weightless = std::min<uint8_t>(weightless, 15);
    std::fill(codes.begin() + count, codes.end(), weightless);
  }
  std::array<uint32_t, kNumChunks> chunks;
  std::memcpy(chunks.data(), codes.data(), sizeof(chunks));
  if (rows.code == CodeKind::kInt8) {
    for (uint32_t& chunk : chunks) chunk ^= 0x80808080U;
  }
  return chunks;
}

void put(uint32_t value, std::byte* at) { std::memcpy(at, &value, sizeof(value)); }

void put_pairs(uint32_t chunk, int32_t r, std::byte* registers) {
  std::byte* const at = registers + r / 4 * 16 + r % 4 * 2;
  std::memcpy(at, &chunk, 2);
  chunk >>= 16;
  std::memcpy(at + 8, &chunk, 2);
}

void put_codes(CodeKind code,
               const std::array<uint32_t, kNumChunks>& chunks,
               int32_t r,
               std::byte* registers) {
  if (code == CodeKind::kInt4 || code == CodeKind::kE2M1) {
    for (size_t c = 0; c < 4; ++c) {
      put(chunks[c] | chunks[c + 4] << 4, registers + c * 64 + r * 4);
    }
  } else if (code == CodeKind::kInt8) {
    for (size_t c = 0; c < kNumChunks; ++c) put(chunks[c], registers + c * 64 + r * 4);
  } else {
    for (size_t c = 0; c < kNumChunks; ++c) put_pairs(chunks[c], r, registers + c * 64);
  }
}

struct BlockScales {
  std::byte* groups;  // the scales of the block's groups
  std::byte* super;
};

// Writes row r's scales of a block's groups; `first` is its first column.
void put_scales(
    WeightFormat format, const PlainRows& rows, int32_t r, int64_t first, const BlockScales& at) {
  const PackedLayout& layout = layout_of(format);
  const int32_t columns = layout.columns_per_scale();
  if (columns == 0) return;
  const int64_t span = int64_t{layout.groups_per_block} * kQuantGroup;
  const int64_t end = std::min(rows.k, first + span);
  const int32_t zeros_at =
      layout.scales == ScaleLayout::kFloat128 ? layout.groups_per_block / 4 * 4 * kRowTile : 0;
  for (int64_t column = first, i = 0; column < end; column += columns, ++i) {
    const float scale = scale_at(rows, r, column);
    const int64_t lane = i * kRowTile + r;
    const auto zero = static_cast<std::byte>(stored(rows.code, zero_at(rows, r, column)));
    switch (layout.scales) {
      case ScaleLayout::kSub16E4M3:
        at.groups[lane] = static_cast<std::byte>(code_of_scale(scale));
        break;
      case ScaleLayout::kExponent:
        at.groups[lane] = static_cast<std::byte>(exponent_of(scale));
        break;
      case ScaleLayout::kFloat32:
        put(std::bit_cast<uint32_t>(scale), at.groups + lane * 4);
        at.super[zeros_at + lane] = zero;
        break;
      case ScaleLayout::kFloat128:
        put(std::bit_cast<uint32_t>(scale), at.super + lane * 4);
        at.super[zeros_at + lane] = zero;
        break;
      default:
        put(std::bit_cast<uint32_t>(scale), at.super + lane * 4);
        break;
    }
  }
}

void put_head(WeightFormat format, const PlainRows& rows, int32_t r, std::byte* tile) {
  float scale = 1;
  if (layout_of(format).scales == ScaleLayout::kChannel) {
    scale = rows.scales[r];
  } else if (rows.row_scales != nullptr) {
    scale = rows.row_scales[r];
  }
  put(std::bit_cast<uint32_t>(scale), tile + r * 4);
}

std::array<double, 256> e4m3_values() {
  std::array<double, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = static_cast<double>(e4m3_to_float(static_cast<uint8_t>(code)));
  }
  return values;
}

}  // namespace

double code_value(CodeKind kind, uint8_t code, uint8_t zero) {
  static const std::array<double, 256> of_e4m3 = e4m3_values();
  switch (kind) {
    case CodeKind::kInt4:
      return code - zero;
    case CodeKind::kInt8:
      return static_cast<int8_t>(code) - static_cast<int8_t>(zero);
    case CodeKind::kE4M3:
      return of_e4m3[code];
    case CodeKind::kE2M1:
      return 0.5 * kE2M1Codebook[code];
  }
  return 0;
}

double plain_value(const PlainRows& rows, int64_t row, int64_t column) {
  const uint8_t code = rows.codes[row * rows.k + column];
  const double value = code_value(rows.code, code, zero_at(rows, row, column));
  const float row_scale = rows.row_scales == nullptr ? 1.0F : rows.row_scales[row];
  return value * scale_at(rows, row, column) * row_scale;
}

std::optional<CodeKind> plain_code(WeightFormat format) {
  const PackedLayout& layout = layout_of(format);
  switch (layout.element) {
    case ElementFormat::kE4M3:
      return CodeKind::kE4M3;
    case ElementFormat::kE2M1:
      return CodeKind::kE2M1;
    case ElementFormat::kInt:
      if (!layout.has_zeros() && layout.scales != ScaleLayout::kChannel) return std::nullopt;
      return layout.low_bits == 4 ? CodeKind::kInt4 : CodeKind::kInt8;
    default:
      return std::nullopt;
  }
}

std::optional<WeightFormat> plain_format(CodeKind code,
                                         int32_t group,
                                         bool has_zeros,
                                         bool int8_rows) {
  // Returns the columns per scale where the format can hold these scales, else 0.
  const auto columns_each = [&](const PackedLayout& layout) -> int64_t {
    const int32_t columns = layout.columns_per_scale();
    if (columns == 0) {
      const bool are_rows = !layout.has_int32_sums() || (int8_rows && !has_zeros);
      return group == 0 && are_rows ? INT64_MAX : 0;
    }
    // E2M1's scales have a type of their own for each length of groups.
    const bool fits = code == CodeKind::kE2M1 ? group == columns : group % columns == 0;
    return fits ? columns : 0;
  };
  std::optional<WeightFormat> best;
  int64_t most = 0;
  for (int i = 0; i < kNumWeightFormats; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    if (plain_code(format) != code) continue;
    const int64_t columns = columns_each(layout_of(format));
    if (columns > most) best = format;
    most = std::max(most, columns);
  }
  return best;
}

void pack_plain(WeightFormat format, const PlainRows& rows, std::byte* tile) {
  check_rows(format, rows);
  CHECK(rows.rows >= 1 && rows.rows <= kRowTile);
  const PackedLayout& layout = layout_of(format);
  CHECK(rows.row_scales == nullptr || layout.scales == ScaleLayout::kSub16E4M3);
  const int64_t bytes = packed_tile_bytes(format, rows.k);
  const int64_t head = layout.tile_head_bytes();
  std::memset(tile, 0, static_cast<size_t>(head));
  std::memset(tile + head, layout.zero_point, static_cast<size_t>(bytes - head));
  const int64_t span = int64_t{layout.groups_per_block} * kQuantGroup;
  std::byte* block = tile + head;
  for (int64_t first = 0; first < rows.k; first += span, block += layout.block_bytes()) {
    std::byte* const scales = block + layout.groups_per_block * layout.code_bytes();
    const BlockScales at = {.groups = scales,
                            .super = scales + layout.groups_per_block * layout.scale_bytes()};
    const int64_t end = std::min(rows.k, first + span);
    for (int32_t r = 0; r < rows.rows; ++r) {
      std::byte* codes = block;
      for (int64_t k = first; k < end; k += kQuantGroup, codes += layout.code_bytes()) {
        put_codes(rows.code, chunks_of(rows, r, k), r, codes);
      }
      put_scales(format, rows, r, first, at);
    }
  }
  for (int32_t r = 0; r < rows.rows && head > 0; ++r) put_head(format, rows, r, tile);
}

void copy_plain_codes(WeightFormat format, const PlainRows& rows, std::byte* dst) {
  check_rows(format, rows);
  CHECK(has_rows(format));
  copy_matrix_rows(
      format, reinterpret_cast<const std::byte*>(rows.codes), rows.k, 0, rows.rows, dst);
}

void copy_plain_scales(WeightFormat format, const PlainRows& rows, float* dst) {
  check_rows(format, rows);
  const int64_t count = matrix_row_scales(format, rows.k);
  CHECK_LE(1, count);
  const int32_t columns = layout_of(format).columns_per_scale();
  for (int64_t r = 0; r < rows.rows; ++r) {
    for (int64_t i = 0; i < count; ++i) *dst++ = scale_at(rows, r, i * columns);
  }
}

}  // namespace sluice
