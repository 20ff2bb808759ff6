// SPDX-License-Identifier: Apache-2.0
// INT8 weights with a scale per output times int8 rows with a scale each, for w8a8_<isa>.cpp and
// linear_scalar.cpp. No scale lies inside K, so the sums stay integers to the end: several weight
// tiles times several rows are held in registers for all of K, and the order does not matter.
#pragma once

#include "kernels/cpu/gemm/gemm_impl.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int32_t kTokenRecordBytes =
    static_cast<int32_t>(activation_record_bytes(ActivationFormat::kInt8Token));

// Returns the layout of the one format whose sums are int32.
consteval PackedLayout w8a8_layout() {
  for (const PackedLayout& layout : kPackedLayouts) {
    if (layout.has_int32_sums()) return layout;
  }
  return {};
}

inline constexpr int32_t kW8A8GroupBytes = w8a8_layout().code_bytes();
inline constexpr int32_t kW8A8HeadBytes = w8a8_layout().tile_head_bytes();

// Operands of the sums over K: the first group of the first tile and of the first row.
struct W8A8Operands {
  const std::byte* codes;
  int64_t tile_bytes;
  const int8_t* x;
  int32_t num_groups;
  LinesAhead* lines;
};

// Up to this many rows are done before their weights arrive. The hardware's prefetcher follows two
// tiles side by side at full memory speed, and software prefetches slow it (Zen 5; bench/cpu.md).
inline constexpr int32_t kRowsLeftToHardware = 2;

// The next tiles' lines that a pass over kTiles tiles brings to L2: a share of every group's.
template <int kTiles>
struct W8A8Ahead {
  static constexpr int kGroupLines = kW8A8GroupBytes / 64;
  static constexpr int kLines = kGroupLines * kTiles;

  const std::byte* first_group = nullptr;
  int32_t num_lines = 0;
  int64_t lines[kLines];  // from a group's first byte on

  W8A8Ahead() = default;  // brings nothing

  // Takes the part [begin, end) of `whole` of a group's lines.
  SLUICE_INLINE W8A8Ahead(
      const std::byte* first, int64_t tile_bytes, int32_t begin, int32_t end, int32_t whole)
      : first_group(first) {
    for (int32_t i = begin * kLines / whole; i < end * kLines / whole; ++i) {
      lines[num_lines++] = i / kGroupLines * tile_bytes + i % kGroupLines * 64;
    }
  }

  // Prefetches part `part` of `parts` of this pass's lines of a group.
  SLUICE_INLINE void prefetch(int32_t group, int part, int parts) const {
    const std::byte* const at = first_group + group * kW8A8GroupBytes;
    for (int32_t i = part; i < num_lines; i += parts) __builtin_prefetch(at + lines[i], 0, 2);
  }
};

}  // namespace sluice::kernels::cpu::SLUICE_ISA

#if defined(SLUICE_ISA_AVX512)
#include "kernels/cpu/w8a8/w8a8_sums_avx512.h"
#elif defined(SLUICE_ISA_AVX2)
#include "kernels/cpu/w8a8/w8a8_sums_avx2.h"
#else
#include "kernels/cpu/w8a8/w8a8_sums_scalar.h"
#endif

namespace sluice::kernels::cpu::SLUICE_ISA {

// Returns the outputs of row r from their sum; for some of the segments, the sum itself.
// `row_scales` begins at the block's row 0.
SLUICE_INLINE V16
w8a8_output(const LinearBlock& block, I16 isum, const float* row_scales, int r, V16 scale) {
  if constexpr (kCodesTooHigh) {
    const auto* const code_sums = reinterpret_cast<const int32_t*>(row_scales) + kActivationRows;
    isum = sub(isum, shift_left(broadcast(code_sums[r]), 7));
  }
  const V16 scaled = mul(mul(to_float(isum), broadcast(row_scales[r])), scale);
  return block.num_segments == kSegments ? scaled : float_of_bits(isum);
}

// kTiles tiles from `tile` on times kRows rows from `row` on, all of one activation block.
template <int kRows, int kTiles>
static void w8a8_rows(const LinearBlock& block, int32_t tile, int64_t row) {
  const int64_t block_bytes = kTokenHeadBytes + int64_t{block.num_groups} * kTokenRecordBytes;
  const std::byte* const records =
      static_cast<const std::byte*>(block.x) + row / kActivationRows * block_bytes;
  const std::byte* const head = records - kTokenHeadBytes;
  const auto first = static_cast<int>(row % kActivationRows);
  const float* const row_scales = reinterpret_cast<const float*>(head) + first;
  const std::byte* const weight = block.weight + tile * block.tile_bytes;
  if constexpr (kRows == kRowsAtOnce) {
    for (int t = 0; t < kTiles; ++t) own_outputs<kRows>(block, tile + t, row);
  }
  const std::byte* const codes = weight + kW8A8HeadBytes + block.first_group * kW8A8GroupBytes;
  const auto begin = static_cast<int32_t>(row);
  const W8A8Ahead<kTiles> next = block.num_rows <= kRowsLeftToHardware
                                     ? W8A8Ahead<kTiles>()
                                     : W8A8Ahead<kTiles>(codes + kTiles * block.tile_bytes,
                                                         block.tile_bytes,
                                                         begin,
                                                         begin + kRows,
                                                         block.num_rows);
  I16 sum[kTiles][kRows];
  w8a8_dots({.codes = codes,
             .tile_bytes = block.tile_bytes,
             .x = reinterpret_cast<const int8_t*>(records) + first * kQuantGroup,
             .num_groups = block.num_groups,
             .lines = block.lines},
            next,
            sum);
#pragma GCC unroll 4
  for (int t = 0; t < kTiles; ++t) {
    const V16 scale = load(reinterpret_cast<const float*>(weight + t * block.tile_bytes));
    V16 y[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      y[r] = w8a8_output(block, sum[t][r], row_scales, r, scale);
    }
    write_outputs(block, tile + t, row, kRows, y);
  }
}

template <int kTiles>
static void w8a8_columns(const LinearBlock& block, int32_t tile) {
  static constexpr RowsFn kByRows[8] = {
    w8a8_rows<1, kTiles>,
    w8a8_rows<2, kTiles>,
    w8a8_rows<3, kTiles>,
    w8a8_rows<4, kTiles>,
#if defined(SLUICE_ISA_AVX512)
    w8a8_rows<5, kTiles>,
    w8a8_rows<6, kTiles>,
    w8a8_rows<7, kTiles>,
    w8a8_rows<8, kTiles>,
#endif
  };
  for (int64_t row = 0; row < block.num_rows; row += kRowsAtOnce) {
    const int64_t left = block.num_rows - row;
    kByRows[(left < kRowsAtOnce ? left : kRowsAtOnce) - 1](block, tile, row);
  }
}

static void w8a8_tiles(const LinearBlock& block) {
  int32_t tile = 0;
  // A single pass takes one tile at a time, so that the next one arrives while it multiplies.
  const bool one_by_one = block.num_rows > kRowsLeftToHardware && block.num_rows <= kRowsAtOnce;
  for (; !one_by_one && tile + kTilesAtOnce <= block.num_tiles; tile += kTilesAtOnce) {
    w8a8_columns<kTilesAtOnce>(block, tile);
  }
  for (; tile < block.num_tiles; ++tile) w8a8_columns<1>(block, tile);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
