// SPDX-License-Identifier: Apache-2.0
// The sums of w8a8_impl.h with VNNI, which multiplies unsigned by signed bytes and does not
// saturate.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

// Weight codes are 128 too high here, so 128 * (sum of the row's codes) is subtracted in the end.
// Sums may wrap around on the way; the result fits.
inline constexpr bool kCodesTooHigh = true;
inline constexpr int kTilesAtOnce = 2;

template <int kRows, int kTiles>
SLUICE_INLINE void w8a8_dots(const W8A8Operands& in,
                             const W8A8Ahead<kTiles>& next,
                             I16 (&sum)[kTiles][kRows]) {
  // Few sums are split into several partial ones, so that additions do not wait for one another.
  constexpr int kParts = kRows * kTiles <= 2 ? 4 : kRows * kTiles <= 6 ? 2 : 1;
  __m512i acc[kParts][kTiles][kRows];
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) {
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[p][t][r] = _mm512_setzero_si512();
    }
  }
  const std::byte* codes = in.codes;
  const int8_t* x = in.x;
  for (int32_t group = 0; group < in.num_groups; ++group) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      __m512i w[kTiles];
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t) {
        w[t] = _mm512_loadu_si512(codes + t * in.tile_bytes + 64 * c);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512i a = broadcast_dword(x + r * kQuantGroup + 4 * c);
#pragma GCC unroll 4
        for (int t = 0; t < kTiles; ++t) {
          __m512i& s = acc[c % kParts][t][r];
          s = _mm512_dpbusd_epi32(s, w[t], a);
        }
      }
      next.prefetch(group, c, 8);
    }
    bring_lines<kTiles, kRows>(in.lines);
    codes += kW8A8GroupBytes;
    x += kTokenRecordBytes;
  }
#pragma GCC unroll 4
  for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      __m512i total = acc[0][t][r];
#pragma GCC unroll 4
      for (int p = 1; p < kParts; ++p) total = _mm512_add_epi32(total, acc[p][t][r]);
      sum[t][r].v = total;
    }
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
