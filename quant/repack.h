// SPDX-License-Identifier: Apache-2.0
// The layout kernels read: rows interleaved by 16, K in groups of 32, integer codes stay packed.
// One layout serves every instruction set, row count and activation width.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/format.h"

namespace sluice {

inline constexpr int32_t kRowTile = 16;  // rows of W (outputs) side by side

// A weight matrix W[n, k] in kernel layout: ceil(n / 16) row tiles, each ceil(k / 32) groups. Rows
// past n and columns past k hold zero weights (kQ8_0: code byte 128, scale 0).
// Layout of one group of one tile, 64-byte aligned parts:
//   kF32   [32 k][16 rows] float
//   kF16   [32 k][16 rows] fp16
//   kQ8_0  codes [8 chunks][16 rows][4 k] uint8 (code + 128), then scales [16] fp16 (+32 pad)
//   kQ4_1  codes [4 chunk pairs][16 rows][4 bytes] (low nibble: chunk c, high: chunk c + 4, byte j:
//          k = 4 c + j), then scales [16] fp16, minima [16] fp16
struct PackedWeight {
  WeightFormat format = WeightFormat::kF32;
  int32_t n = 0;
  int32_t k = 0;
  const std::byte* data = nullptr;  // 64-byte aligned, packed_bytes(format, n, k)
};

int64_t packed_group_bytes(WeightFormat format);  // one group of one tile
int64_t packed_bytes(WeightFormat format, int64_t n, int64_t k);

// `src`: n rows as in the checkpoint. Row tiles [tile_begin, tile_end) only, so that callers can
// split the work over threads.
void pack_weight(WeightFormat format,
                 const std::byte* src,
                 int64_t n,
                 int64_t k,
                 int64_t tile_begin,
                 int64_t tile_end,
                 std::byte* dst);

}  // namespace sluice
