// SPDX-License-Identifier: Apache-2.0
// Sums of channel_impl.h without VNNI. vpmaddubsw saturates at 16 bits; of |w| and of a with w's
// sign it adds two products of at most 128 * 127 each, 32512 together, which fits. So activations
// must be at least -127, as quantization makes them.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr bool kCodesTooHigh = false;
inline constexpr int kTilesAtOnce = 1;

// Outputs 8 * half .. 8 * half + 7 of chunk c.
template <int kRows>
SLUICE_INLINE void channel_chunk(const std::byte* codes, const int8_t* x, __m256i (&sum)[kRows]) {
  const __m256i w = _mm256_xor_si256(load_256(codes), _mm256_set1_epi8(-128));
  const __m256i magnitude = _mm256_abs_epi8(w);  // 128 as an unsigned byte for -128
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m256i a = _mm256_sign_epi8(broadcast_dword(x + r * kQuantGroup), w);
    const __m256i pairs = _mm256_maddubs_epi16(magnitude, a);
    sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
}

template <int kRows, int kTiles>
SLUICE_INLINE void channel_dots(const ChannelOperands& in, I16 (&sum)[kTiles][kRows]) {
  static_assert(kTiles == 1);
  __m256i low[kRows];
  __m256i high[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) low[r] = high[r] = _mm256_setzero_si256();
  const std::byte* codes = in.codes;
  const int8_t* x = in.x;
  for (int32_t group = 0; group < in.num_groups; ++group) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      channel_chunk<kRows>(codes + 64 * c, x + 4 * c, low);
      channel_chunk<kRows>(codes + 64 * c + 32, x + 4 * c, high);
    }
    codes += kChannelGroupBytes;
    x += kTokenRecordBytes;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sum[0][r] = I16{low[r], high[r]};
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
