// SPDX-License-Identifier: Apache-2.0
// The sums of w8a8_impl.h in plain C++.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr bool kCodesTooHigh = false;
inline constexpr int kTilesAtOnce = 1;

template <int kRows, int kTiles>
SLUICE_INLINE void w8a8_dots(const W8A8Operands& in,
                             const W8A8Ahead<kTiles>& /*next*/,
                             I16 (&sum)[kTiles][kRows]) {
  for (int t = 0; t < kTiles; ++t) {
    const uint8_t* const codes = bytes_at(in.codes + t * in.tile_bytes);
    for (int r = 0; r < kRows; ++r) {
      I16 total = broadcast(int32_t{0});
      for (int32_t group = 0; group < in.num_groups; ++group) {
        const int8_t* const x = in.x + group * kTokenRecordBytes + r * kQuantGroup;
        const uint8_t* const w = codes + group * kW8A8GroupBytes;
        for (int k = 0; k < kQuantGroup; ++k) {
          for (int output = 0; output < kRowTile; ++output) {
            const int32_t weight = w[k / 4 * 64 + output * 4 + k % 4] - 128;
            total.v[output] += weight * x[k];
          }
        }
      }
      sum[t][r] = total;
    }
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
