// SPDX-License-Identifier: Apache-2.0
// The sums of w8a8_impl.h without VNNI. vpmaddubsw saturates at 16 bits, so it multiplies |w| by
// the activation with w's sign: two products of at most 128 * 127 add up to 32512, which fits.
// Activations must be at least -127, as quantization makes them.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr bool kCodesTooHigh = false;
inline constexpr int kTilesAtOnce = 1;

// Weights in the form that vpmaddubsw and vpsignb take.
struct SignedCodes {
  __m256i codes;
  __m256i magnitude;  // 128 as an unsigned byte for -128

  SLUICE_INLINE explicit SignedCodes(const std::byte* p)
      : codes(_mm256_xor_si256(load_256(p), _mm256_set1_epi8(-128))),
        magnitude(_mm256_abs_epi8(codes)) {}

  // Returns the sums of 4 consecutive k.
  [[nodiscard]] SLUICE_INLINE __m256i dot(__m256i a) const {
    const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, codes));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
};

template <int kRows, int kTiles>
SLUICE_INLINE void w8a8_dots(const W8A8Operands& in,
                             const W8A8Ahead<kTiles>& next,
                             I16 (&sum)[kTiles][kRows]) {
  static_assert(kTiles == 1);
  CodePair total[kRows];  // for both halves of the outputs
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) total[r] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  const std::byte* codes = in.codes;
  const int8_t* x = in.x;
  for (int32_t group = 0; group < in.num_groups; ++group) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      const SignedCodes first(codes + 64 * c);
      const SignedCodes second(codes + 64 * c + 32);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m256i a = broadcast_dword(x + r * kQuantGroup + 4 * c);
        total[r].first = _mm256_add_epi32(total[r].first, first.dot(a));
        total[r].second = _mm256_add_epi32(total[r].second, second.dot(a));
        in_order(total[r]);
      }
      next.prefetch(group, c, 8);
    }
    bring_lines<kTiles, kRows>(in.lines);
    codes += kW8A8GroupBytes;
    x += kTokenRecordBytes;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sum[0][r] = I16{total[r].first, total[r].second};
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
