// SPDX-License-Identifier: Apache-2.0
// A matrix of a format whose rows are no blocks (NVFP4, INT4, INT8 per 32), from random plain rows:
// its tiles, and what the tree of kernels/gemm.h multiplies.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "quant/kv_code.h"
#include "quant/plain_rows.h"
#include "tests/kernels/linear_reference.h"

namespace sluice::kernels::test {

struct PlainWeight {
  WeightFormat format;
  int32_t n;
  int64_t k;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<uint8_t> zeros;
  std::vector<float> row_scales;
  testing::AlignedBuffer packed;
  PackedWeight view;

  [[nodiscard]] PlainRows rows(int64_t first, int32_t count) const {
    PlainRows rows{.code = kind(format), .rows = count, .k = k, .codes = codes.data() + first * k};
    rows.group = group(format);
    rows.scales = scales.data() + first * rows.scales_per_row();
    if (!zeros.empty()) rows.zeros = zeros.data() + first * rows.scales_per_row();
    if (!row_scales.empty()) rows.row_scales = row_scales.data() + first;
    return rows;
  }

  // Codes as kernels multiply them, zero past k; scales are per 16.
  [[nodiscard]] testing::DecodedRow decoded(int64_t row) const {
    const PlainRows own = rows(row, 1);
    const bool e2m1 = own.code == CodeKind::kE2M1;
    testing::DecodedRow d;
    d.halves = e2m1;
    for (int64_t i = 0; i < align_up(k, kQuantGroup); ++i) {
      const auto at = static_cast<size_t>(std::min(i, k - 1) / own.group);
      if (i % 16 == 0) {
        d.scale.push_back(e2m1 ? own.scales[at] / 2 : own.scales[at]);
        d.minimum.push_back(0);
      }
      int32_t code = 0;
      if (i < k) {
        const uint8_t byte = own.codes[i];
        const uint8_t zero = own.zeros == nullptr ? 0 : own.zeros[at];
        code = e2m1 ? kMxfp4Codebook[byte]
               : own.code == CodeKind::kInt4
                   ? byte - zero
                   : static_cast<int8_t>(byte) - static_cast<int8_t>(zero);
      }
      d.codes.push_back(code);
    }
    return d;
  }

  [[nodiscard]] float row_scale(int64_t row) const {
    return row_scales.empty() ? 1.0F : row_scales[static_cast<size_t>(row)];
  }

  static CodeKind kind(WeightFormat format) {
    if (format == WeightFormat::kNVFP4) return CodeKind::kE2M1;
    return format == WeightFormat::kInt8Group32 ? CodeKind::kInt8 : CodeKind::kInt4;
  }

  static int32_t group(WeightFormat format) {
    if (format == WeightFormat::kNVFP4) return 16;
    return format == WeightFormat::kInt4Group128 ? 128 : 32;
  }
};

// Any codes and, where the format has them, zero points from end to end.
inline PlainWeight make_plain(WeightFormat format, int32_t n, int64_t k, uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_int_distribution<int> byte(0, 255);
  std::uniform_real_distribution<float> scale(0.001F, 0.05F);
  PlainWeight w{.format = format,
                .n = n,
                .k = k,
                .codes = {},
                .scales = {},
                .zeros = {},
                .row_scales = {},
                .packed = testing::AlignedBuffer(packed_bytes(format, n, k)),
                .view = {}};
  const bool nvfp4 = format == WeightFormat::kNVFP4;
  const int mask = format == WeightFormat::kInt8Group32 ? 255 : 15;
  for (int64_t i = 0; i < n * k; ++i) w.codes.push_back(static_cast<uint8_t>(byte(rng) & mask));
  for (int64_t i = 0; i < n * ceil_div(k, PlainWeight::group(format)); ++i) {
    // Of e4m3 every finite value of 7 bits.
    w.scales.push_back(nvfp4 ? e4m3_to_float(static_cast<uint8_t>(byte(rng) % 0x7F)) : scale(rng));
    if (!nvfp4) w.zeros.push_back(static_cast<uint8_t>(byte(rng)));
  }
  if (nvfp4) {
    for (int32_t i = 0; i < n; ++i) w.row_scales.push_back(scale(rng));
  }
  const int64_t tile_bytes = packed_tile_bytes(format, k);
  for (int32_t tile = 0; tile * kRowTile < n; ++tile) {
    const int32_t rows = std::min(kRowTile, n - tile * kRowTile);
    pack_plain(format, w.rows(tile * kRowTile, rows), w.packed.data() + tile * tile_bytes);
  }
  w.view = {.format = format, .n = n, .k = static_cast<int32_t>(k), .data = w.packed.data()};
  return w;
}

}  // namespace sluice::kernels::test
