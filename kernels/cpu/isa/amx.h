// SPDX-License-Identifier: Apache-2.0
// AMX registers as gemm_amx.h and w8a8_sums_amx.h use them. A register of codes of 16 outputs times
// one of 8 rows of activations gives 8 x 16 exact sums.
#pragma once

#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// The operand of ldtilecfg.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Registers 0 to 3 hold sums [rows][16 outputs], 4 and 5 activations [rows][k], 6 and 7 codes
// [k / 4][16 outputs][4].
consteval TileConfig tile_config(int rows, int k) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? k : 64);
    config.rows[i] = static_cast<uint8_t>(i < 6 ? rows : k / 4);
  }
  return config;
}

template <int kRows, int k>
inline constexpr TileConfig kTileConfig = tile_config(kRows, k);

// Rows that are multiplied at a time: two activation blocks.
inline constexpr int32_t kRowsTogether = 2 * kActivationRows;

}  // namespace sluice::kernels::cpu::SLUICE_ISA
