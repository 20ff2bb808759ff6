// SPDX-License-Identifier: Apache-2.0
#include "quant/repack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {
namespace {

constexpr int32_t kNumChunks = 8;

// Kernels load whole cache lines, and multiply by a zero point with a shift.
constexpr bool suits_kernels(const PackedLayout& layout) {
  const bool has_shift =
      layout.zero_point == 0 || std::has_single_bit(static_cast<uint32_t>(layout.zero_point));
  return layout.block_bytes() % 64 == 0 && has_shift;
}

static_assert(std::ranges::all_of(kPackedLayouts, suits_kernels));

// The rows of one tile inside the checkpoint's matrix.
struct TileRows {
  const std::byte* first;  // row tile * 16
  int64_t row_bytes;
  int32_t count;  // 1..16; the rest of the tile is padding

  [[nodiscard]] const std::byte* row(int32_t r) const { return first + r * row_bytes; }
};

// Packs transposed, so that 16 outputs of one k lie side by side.
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

// Stores row r's dword of every register of the code planes, from its 8 chunks of 4 codes.
void pack_codes(const PackedLayout& layout, const uint8_t* codes, int32_t r, std::byte* dst) {
  std::array<uint32_t, kNumChunks> chunk;
  std::memcpy(chunk.data(), codes, sizeof(chunk));
  const auto put = [&](int32_t reg, uint32_t dword) {
    std::memcpy(dst + (reg * kRowTile + r) * 4, &dword, sizeof(dword));
  };
  // Returns the dword with chunks from `first` on side by side, `bits` from `shift` of each.
  const auto gather = [&](int32_t first, int32_t step, int32_t bits, int32_t shift) {
    const uint32_t mask = ((1U << bits) - 1) * 0x01010101U;
    uint32_t dword = 0;
    for (int32_t i = 0; i * bits < 8; ++i) {
      const uint32_t part = chunk[static_cast<size_t>(first + i * step)] >> shift;
      dword |= (part & mask) << (i * bits);
    }
    return dword;
  };
  const int32_t high = layout.low_bits;  // the register that the high plane begins with
  if (layout.low_bits == 8) {
    for (int32_t c = 0; c < 8; ++c) put(c, chunk[static_cast<size_t>(c)]);
  } else if (layout.low_bits == 4) {
    for (int32_t c = 0; c < 4; ++c) put(c, gather(c, 4, 4, 0));
  } else {
    for (int32_t half = 0; half < 2; ++half) put(half, gather(4 * half, 1, 2, 0));
  }
  if (layout.high_bits == 1) {
    put(high, gather(0, 1, 1, layout.low_bits));
  } else if (layout.high_bits == 2) {
    for (int32_t half = 0; half < 2; ++half) {
      put(high + half, gather(4 * half, 1, 2, layout.low_bits));
    }
  }
}

void put_half(uint16_t half, int32_t r, std::byte* dst) {
  std::memcpy(dst + r * 2, &half, sizeof(half));
}

// Stores row r's part of a group's scales, and of its super-block's, which every group writes
// alike.
void pack_scales(ScaleLayout layout,
                 const QuantizedGroup& group,
                 int32_t r,
                 std::byte* scales,
                 std::byte* super) {
  switch (layout) {
    case ScaleLayout::kNone:
    case ScaleLayout::kChannel:
    case ScaleLayout::kSub16E4M3:
    case ScaleLayout::kFloat32:
    case ScaleLayout::kFloat128:
    case ScaleLayout::kBlock128:
      return;  // no format with blocks has these
    case ScaleLayout::kHalf:
      return put_half(group.scale_bits, r, scales);
    case ScaleLayout::kHalfMin:
      put_half(group.scale_bits, r, scales);
      return put_half(group.min_bits, r, scales + 2 * kRowTile);
    case ScaleLayout::kExponent:
      scales[r] = static_cast<std::byte>(group.scale_bits);
      return;
    case ScaleLayout::kSub32:
      scales[r] = static_cast<std::byte>(group.sub_scale[0]);
      return put_half(group.scale_bits, r, super);
    case ScaleLayout::kSub16:
      for (int h = 0; h < 2; ++h) {
        scales[h * kRowTile + r] = static_cast<std::byte>(group.sub_scale[h]);
      }
      return put_half(group.scale_bits, r, super);
    case ScaleLayout::kSub32Min:
      scales[r] = static_cast<std::byte>(group.sub_scale[0]);
      scales[kRowTile + r] = static_cast<std::byte>(group.sub_min[0]);
      break;
    case ScaleLayout::kSub16Min:
      for (int h = 0; h < 2; ++h) {
        scales[h * kRowTile + r] =
            static_cast<std::byte>(group.sub_scale[h] | group.sub_min[h] << 4);
      }
      break;
  }
  put_half(group.scale_bits, r, super);
  put_half(group.min_bits, r, super + 2 * kRowTile);
}

// Whether a block is one group whose codes end it, in the layout's order: nibbles j and j + 16 in
// one byte, or whole bytes, which become stored ones if signed. A row's dwords are then copied.
bool has_plain_codes(WeightFormat format) {
  return format_info(format).block_elements == kQuantGroup && layout_of(format).high_bits == 0;
}

template <int kDwords>
void pack_plain_codes(const std::byte* codes, uint32_t flip, int32_t r, std::byte* dst) {
  std::array<uint32_t, kDwords> dwords;
  std::memcpy(dwords.data(), codes, sizeof(dwords));
  for (size_t i = 0; i < kDwords; ++i) {
    const uint32_t dword = dwords[i] ^ flip;
    std::memcpy(dst + (i * kRowTile + static_cast<size_t>(r)) * 4, &dword, sizeof(dword));
  }
}

// Packs blocks with plain codes, which begin with scales in the layout's order.
template <int kDwords>
void pack_plain_block(WeightFormat format,
                      const TileRows& rows,
                      int64_t first_group,
                      int64_t num_groups,
                      std::byte* dst) {
  const PackedLayout& layout = layout_of(format);
  constexpr int64_t kCodeBytes = kDwords * 4;
  const uint32_t flip = layout.low_bits == 8 ? 0x80808080U : 0;
  const int64_t block_bytes = format_info(format).block_bytes;
  std::byte* const scales = dst + layout.groups_per_block * layout.code_bytes();
  for (int32_t r = 0; r < rows.count; ++r) {
    const std::byte* block = rows.row(r) + first_group * block_bytes;
    for (int64_t g = 0; g < num_groups; ++g, block += block_bytes) {
      const std::byte* const codes = block + block_bytes - kCodeBytes;
      pack_plain_codes<kDwords>(codes, flip, r, dst + g * layout.code_bytes());
      std::byte* const scale = scales + g * layout.scale_bytes();
      if (layout.scales == ScaleLayout::kExponent) {
        scale[r] = block[0];
        continue;
      }
      std::memcpy(scale + r * 2, block, 2);
      if (layout.scales == ScaleLayout::kHalfMin) {
        std::memcpy(scale + (kRowTile + r) * 2, block + 2, 2);
      }
    }
  }
}

void pack_integer_block(WeightFormat format,
                        const TileRows& rows,
                        int64_t first_group,
                        int64_t num_groups,
                        std::byte* dst) {
  const PackedLayout& layout = layout_of(format);
  std::byte* const scales = dst + layout.groups_per_block * layout.code_bytes();
  std::byte* const super = scales + layout.groups_per_block * layout.scale_bytes();
  for (int32_t r = 0; r < rows.count; ++r) {
    for (int64_t g = 0; g < num_groups; ++g) {
      const QuantizedGroup group = read_group(format, rows.row(r), first_group + g);
      pack_codes(layout, group.codes, r, dst + g * layout.code_bytes());
      pack_scales(layout.scales, group, r, scales + g * layout.scale_bytes(), super);
    }
  }
}

}  // namespace

int64_t packed_tile_bytes(WeightFormat format, int64_t k) {
  const PackedLayout& layout = layout_of(format);
  return layout.tile_head_bytes() +
         ceil_div(ceil_div(k, kQuantGroup), layout.groups_per_block) * layout.block_bytes();
}

int64_t packed_bytes(WeightFormat format, int64_t n, int64_t k) {
  return ceil_div(n, kRowTile) * packed_tile_bytes(format, k);
}

void pack_weight(WeightFormat format,
                 const std::byte* src,
                 int64_t n,
                 int64_t k,
                 int64_t tile_begin,
                 int64_t tile_end,
                 std::byte* dst) {
  CHECK(format_info(format).ggml_type != kNoGgmlType);
  CHECK_LE(0, tile_begin);
  CHECK_LE(tile_end, ceil_div(n, kRowTile));
  const PackedLayout& layout = layout_of(format);
  const int64_t source_row_bytes = row_bytes(format, k);
  const int64_t num_groups = ceil_div(k, kQuantGroup);
  const int64_t tile_bytes = packed_tile_bytes(format, k);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t first_row = tile * kRowTile;
    const TileRows rows{.first = src + first_row * source_row_bytes,
                        .row_bytes = source_row_bytes,
                        .count = static_cast<int32_t>(std::min<int64_t>(kRowTile, n - first_row))};
    std::byte* out = dst + tile * tile_bytes;
    std::memset(out, 0, static_cast<size_t>(tile_bytes));
    for (int64_t group = 0; group < num_groups; group += layout.groups_per_block) {
      if (layout.low_bits == 32) {
        pack_float_group<uint32_t>(rows, group, k, out);
      } else if (layout.low_bits == 16) {
        pack_float_group<uint16_t>(rows, group, k, out);
      } else {
        const int64_t here = std::min<int64_t>(layout.groups_per_block, num_groups - group);
        if (!has_plain_codes(format)) {
          pack_integer_block(format, rows, group, here, out);
        } else if (layout.low_bits == 4) {
          pack_plain_block<4>(format, rows, group, here, out);
        } else {
          pack_plain_block<8>(format, rows, group, here, out);
        }
      }
      out += layout.block_bytes();
    }
  }
}

int64_t matrix_row_stride(WeightFormat format, int64_t k) {
  constexpr int64_t kUnit = 16;
  return align_up(row_bytes(format, k), kUnit);
}

int64_t matrix_row_scales(WeightFormat format, int64_t k) {
  const PackedLayout& layout = layout_of(format);
  if (layout.scales == ScaleLayout::kChannel) return 1;
  return layout.scales == ScaleLayout::kBlock128 ? ceil_div(k, layout.columns_per_scale()) : 0;
}

int64_t matrix_scales_offset(WeightFormat format, int64_t n, int64_t k) {
  return align_up(n * matrix_row_stride(format, k), 64);
}

int64_t matrix_bytes(WeightFormat format, int64_t n, int64_t k) {
  const int64_t scales = n * matrix_row_scales(format, k);
  if (scales == 0) return n * matrix_row_stride(format, k);
  return matrix_scales_offset(format, n, k) + scales * static_cast<int64_t>(sizeof(float));
}

void copy_matrix_rows(WeightFormat format,
                      const std::byte* src,
                      int64_t k,
                      int64_t row_begin,
                      int64_t row_end,
                      std::byte* dst) {
  const int64_t bytes = row_bytes(format, k);
  const int64_t stride = matrix_row_stride(format, k);
  for (int64_t row = row_begin; row < row_end; ++row) {
    std::memcpy(dst + row * stride, src + row * bytes, static_cast<size_t>(bytes));
    std::memset(dst + row * stride + bytes, 0, static_cast<size_t>(stride - bytes));
  }
}

ColumnRange columns_to_store(
    WeightFormat format, MatrixForm form, int64_t begin, int64_t end, int64_t k) {
  const PackedLayout& layout = layout_of(format);
  if (form == MatrixForm::kRows && layout.columns_per_scale() == 0) return {begin, end - begin};
  const int64_t block = int64_t{layout.groups_per_block} * kQuantGroup;
  const int64_t first = begin / block * block;
  return {first, std::min(k, align_up(end, block)) - first};
}

void cut_columns(WeightFormat format,
                 MatrixForm form,
                 int64_t k,
                 const ColumnRange& columns,
                 int64_t num_rows,
                 const std::byte* src,
                 std::byte* dst) {
  const bool rows = form == MatrixForm::kRows;
  const PackedLayout& layout = layout_of(format);
  const int64_t head = rows ? 0 : layout.tile_head_bytes();
  const int64_t block = int64_t{layout.groups_per_block} * kQuantGroup;
  const auto bytes_of = [&](int64_t count) {
    return rows ? matrix_row_stride(format, count) : packed_tile_bytes(format, count);
  };
  const int64_t skipped =
      rows ? row_bytes(format, columns.first) : columns.first / block * layout.block_bytes();
  const int64_t used = rows ? row_bytes(format, columns.count) : bytes_of(columns.count) - head;
  const int64_t from = bytes_of(k);
  const int64_t to = bytes_of(columns.count);
  for (int64_t i = 0; i < (rows ? num_rows : ceil_div(num_rows, kRowTile)); ++i) {
    std::memcpy(dst + i * to, src + i * from, static_cast<size_t>(head));
    std::memcpy(dst + i * to + head, src + i * from + head + skipped, static_cast<size_t>(used));
    std::memset(dst + i * to + head + used, 0, static_cast<size_t>(to - head - used));
  }
}

void cut_row_scales(WeightFormat format,
                    int64_t k,
                    const ColumnRange& columns,
                    int64_t num_rows,
                    const float* src,
                    float* dst) {
  const int64_t from = matrix_row_scales(format, k);
  const int64_t to = matrix_row_scales(format, columns.count);
  const int64_t per_scale = layout_of(format).columns_per_scale();
  const int64_t first = per_scale == 0 ? 0 : columns.first / per_scale;
  CHECK_LE(first + to, from);
  for (int64_t row = 0; row < num_rows; ++row) {
    std::copy_n(src + row * from + first, to, dst + row * to);
  }
}

}  // namespace sluice
