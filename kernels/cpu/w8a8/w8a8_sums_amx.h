// SPDX-License-Identifier: Apache-2.0
// The sums of w8a8_impl.h with AMX. Codes stay unsigned, 128 too high, as for VNNI.
#pragma once

#include "kernels/cpu/isa/amx.h"
#include "kernels/cpu/w8a8/w8a8_impl.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// kTiles tiles times kBlocks blocks of rows from `row` on; the sums stay in registers for all of K.
template <int kTiles, int kBlocks>
static void w8a8_with_amx(const LinearBlock& block, int32_t tile, int32_t row) {
  const int64_t block_bytes = kTokenHeadBytes + int64_t{block.num_groups} * kTokenRecordBytes;
  const std::byte* x =
      static_cast<const std::byte*>(block.x) + row / kActivationRows * block_bytes;
  const std::byte* const head = x - kTokenHeadBytes;
  const std::byte* const weight = block.weight + tile * block.tile_bytes;
  const std::byte* codes = weight + kW8A8HeadBytes + block.first_group * kW8A8GroupBytes;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int32_t group = 0; group < block.num_groups; ++group) {
    _tile_loadd(4, x, kQuantGroup);
    _tile_loadd(6, codes, 64);
    if constexpr (kBlocks == 2) _tile_loadd(5, x + block_bytes, kQuantGroup);
    if constexpr (kTiles == 2) _tile_loadd(7, codes + block.tile_bytes, 64);
    _tile_dpbsud(0, 4, 6);
    if constexpr (kBlocks == 2) _tile_dpbsud(1, 5, 6);
    if constexpr (kTiles == 2) _tile_dpbsud(2, 4, 7);
    if constexpr (kBlocks == 2 && kTiles == 2) _tile_dpbsud(3, 5, 7);
    x += kTokenRecordBytes;
    codes += kW8A8GroupBytes;
  }
  alignas(64) int32_t sums[2][2][kActivationRows][kRowTile];
  _tile_stored(0, sums[0][0], 64);
  _tile_stored(1, sums[0][1], 64);
  _tile_stored(2, sums[1][0], 64);
  _tile_stored(3, sums[1][1], 64);
  for (int t = 0; t < kTiles; ++t) {
    const V16 scale = load(reinterpret_cast<const float*>(weight + t * block.tile_bytes));
    for (int b = 0; b < kBlocks; ++b) {
      const auto* const row_scales = reinterpret_cast<const float*>(head + b * block_bytes);
      V16 y[kActivationRows];
#pragma GCC unroll 8
      for (int r = 0; r < kActivationRows; ++r) {
        y[r] = w8a8_output(block, {_mm512_load_si512(sums[t][b][r])}, row_scales, r, scale);
      }
      const int32_t first = row + b * kActivationRows;
      const int32_t left = block.num_rows - first;
      write_outputs(block, tile + t, first, left < kActivationRows ? left : kActivationRows, y);
    }
  }
}

template <int kTiles>
static void w8a8_columns_with_amx(const LinearBlock& block, int32_t tile) {
  for (int32_t row = 0; row < block.num_rows; row += kRowsTogether) {
    if (block.num_rows - row > kActivationRows) {
      w8a8_with_amx<kTiles, 2>(block, tile, row);
    } else {
      w8a8_with_amx<kTiles, 1>(block, tile, row);
    }
  }
}

static void w8a8_tiles_with_amx(const LinearBlock& block) {
  _tile_loadconfig(&kTileConfig<kActivationRows, kQuantGroup>);
  int32_t tile = 0;
  for (; tile + 2 <= block.num_tiles; tile += 2) w8a8_columns_with_amx<2>(block, tile);
  if (tile < block.num_tiles) w8a8_columns_with_amx<1>(block, tile);
  _tile_release();
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
