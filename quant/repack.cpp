// SPDX-License-Identifier: Apache-2.0
#include "quant/repack.h"

#include <algorithm>
#include <cstring>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {
namespace {

constexpr int32_t kChunk = 4;  // consecutive k of one row that one 32-bit lane multiplies
constexpr uint8_t kQ8Zero = 128;

// The rows of one tile inside the checkpoint's matrix.
struct TileRows {
  const std::byte* first;  // row tile * 16
  int64_t row_bytes;
  int32_t count;  // 1..16; the rest of the tile is padding

  [[nodiscard]] const std::byte* row(int32_t r) const { return first + r * row_bytes; }
};

// kF32 and kF16: transposed, so that 16 outputs of one k lie side by side.
template <typename Element>
void pack_float_group(const TileRows& rows, int64_t group, int64_t k, std::byte* dst) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
  const int64_t first_k = group * kQuantGroup;
  const int64_t count = std::min<int64_t>(kQuantGroup, k - first_k);
  for (int32_t r = 0; r < rows.count; ++r) {
    const std::byte* src = rows.row(r) + first_k * kBytes;
    for (int64_t j = 0; j < count; ++j) {
      std::memcpy(dst + (j * kRowTile + r) * kBytes, src + j * kBytes, sizeof(Element));
    }
  }
}

void pack_q8_0_group(const TileRows& rows, int64_t group, std::byte* dst) {
  constexpr int32_t kCodesBytes = kQuantGroup * kRowTile;
  std::memset(dst, kQ8Zero, kCodesBytes);
  for (int32_t r = 0; r < rows.count; ++r) {
    BlockQ8_0 block;
    std::memcpy(&block, rows.row(r) + group * static_cast<int64_t>(sizeof(block)), sizeof(block));
    for (int32_t j = 0; j < kQuantGroup; ++j) {
      const int32_t at = (j / kChunk * kRowTile + r) * kChunk + j % kChunk;
      dst[at] = static_cast<std::byte>(block.codes[j] + kQ8Zero);
    }
    std::memcpy(dst + kCodesBytes + r * sizeof(uint16_t), &block.scale, sizeof(uint16_t));
  }
}

void pack_q4_1_group(const TileRows& rows, int64_t group, std::byte* dst) {
  constexpr int32_t kCodesBytes = kQuantGroup / 2 * kRowTile;
  constexpr int32_t kScalesBytes = kRowTile * sizeof(uint16_t);
  for (int32_t r = 0; r < rows.count; ++r) {
    BlockQ4_1 block;
    std::memcpy(&block, rows.row(r) + group * static_cast<int64_t>(sizeof(block)), sizeof(block));
    // The checkpoint already pairs element j with j + 16, which is chunk c with c + 4.
    for (int32_t chunk = 0; chunk < kQuantGroup / 2 / kChunk; ++chunk) {
      std::memcpy(dst + (chunk * kRowTile + r) * kChunk, block.codes + chunk * kChunk, kChunk);
    }
    std::byte* scales = dst + kCodesBytes;
    std::memcpy(scales + r * sizeof(uint16_t), &block.scale, sizeof(uint16_t));
    std::memcpy(scales + kScalesBytes + r * sizeof(uint16_t), &block.min, sizeof(uint16_t));
  }
}

}  // namespace

int64_t packed_group_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return int64_t{kQuantGroup} * kRowTile * 4;
    case WeightFormat::kF16:
      return int64_t{kQuantGroup} * kRowTile * 2;
    case WeightFormat::kQ8_0:
      return int64_t{kQuantGroup} * kRowTile + 2 * kRowTile + 32;
    case WeightFormat::kQ4_1:
      return int64_t{kQuantGroup} / 2 * kRowTile + 2 * 2 * kRowTile;
  }
  SLUICE_UNREACHABLE("weight format without a packed layout");
}

int64_t packed_bytes(WeightFormat format, int64_t n, int64_t k) {
  return ceil_div(n, kRowTile) * ceil_div(k, kQuantGroup) * packed_group_bytes(format);
}

void pack_weight(WeightFormat format,
                 const std::byte* src,
                 int64_t n,
                 int64_t k,
                 int64_t tile_begin,
                 int64_t tile_end,
                 std::byte* dst) {
  CHECK_LE(0, tile_begin);
  CHECK_LE(tile_end, ceil_div(n, kRowTile));
  const int64_t source_row_bytes = row_bytes(format, k);
  const int64_t num_groups = ceil_div(k, kQuantGroup);
  const int64_t group_bytes = packed_group_bytes(format);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t first_row = tile * kRowTile;
    const TileRows rows{.first = src + first_row * source_row_bytes,
                        .row_bytes = source_row_bytes,
                        .count = static_cast<int32_t>(std::min<int64_t>(kRowTile, n - first_row))};
    for (int64_t group = 0; group < num_groups; ++group) {
      std::byte* out = dst + (tile * num_groups + group) * group_bytes;
      std::memset(out, 0, static_cast<size_t>(group_bytes));
      switch (format) {
        case WeightFormat::kF32:
          pack_float_group<uint32_t>(rows, group, k, out);
          break;
        case WeightFormat::kF16:
          pack_float_group<uint16_t>(rows, group, k, out);
          break;
        case WeightFormat::kQ8_0:
          pack_q8_0_group(rows, group, out);
          break;
        case WeightFormat::kQ4_1:
          pack_q4_1_group(rows, group, out);
          break;
      }
    }
  }
}

}  // namespace sluice
