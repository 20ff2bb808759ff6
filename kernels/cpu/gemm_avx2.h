// SPDX-License-Identifier: Apache-2.0
// Exact dot products of one weight group without VNNI. vpmaddubsw saturates at 16 bits, so full
// bytes go through it as two nibbles: 8 chunks of 2 * 15 * 128 stay below 2^15.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kRowsAtOnce = 4;

SLUICE_INLINE __m256i broadcast_dword(const void* p) {
  int32_t dword;
  std::memcpy(&dword, p, sizeof(dword));
  return _mm256_set1_epi32(dword);
}

// Outputs 8 * half .. 8 * half + 7 of one group times kRows rows.
template <WeightFormat kFormat, int kRows>
SLUICE_INLINE void dot_int8_half(const std::byte* group,
                                 const int8_t* x,
                                 int half,
                                 __m256i (&isum)[kRows]) {
  const __m256i nibble = _mm256_set1_epi8(15);
  __m256i low[kRows];   // low nibbles (Q4_1: all), 16-bit sums of 2 k
  __m256i high[kRows];  // high nibbles of Q8_0
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) low[r] = high[r] = _mm256_setzero_si256();
  constexpr int kLoads = kFormat == WeightFormat::kQ4_1 ? 4 : 8;
#pragma GCC unroll 8
  for (int c = 0; c < kLoads; ++c) {
    const __m256i bytes = load_256(group + c * 64 + half * 32);
    const __m256i low_codes = _mm256_and_si256(bytes, nibble);
    const __m256i high_codes = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const int8_t* const row = x + r * kQuantGroup;
      const __m256i a = broadcast_dword(row + 4 * c);
      low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(low_codes, a));
      if constexpr (kFormat == WeightFormat::kQ4_1) {
        const __m256i b = broadcast_dword(row + 4 * (c + 4));
        low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(high_codes, b));
      } else {
        high[r] = _mm256_add_epi16(high[r], _mm256_maddubs_epi16(high_codes, a));
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    isum[r] = _mm256_madd_epi16(low[r], _mm256_set1_epi16(1));
    if constexpr (kFormat == WeightFormat::kQ8_0) {
      isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(high[r], _mm256_set1_epi16(16)));
    }
  }
}

// use(r, dot) for each of kRows rows of 32 codes each, one after the other.
template <WeightFormat kFormat, int kRows, typename Use>
SLUICE_INLINE void dot_int8(const std::byte* group, const int8_t* x, Use use) {
  __m256i lo[kRows];
  __m256i hi[kRows];
  dot_int8_half<kFormat, kRows>(group, x, 0, lo);
  dot_int8_half<kFormat, kRows>(group, x, 1, hi);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) use(r, I16{lo[r], hi[r]});
}

template <WeightFormat kFormat, int kRows>
SLUICE_INLINE void dot_int16_half(const std::byte* group,
                                  const int16_t* x,
                                  int half,
                                  __m256i (&isum)[kRows]) {
  const __m256i first = _mm256_setr_epi8(0,
                                         -1,
                                         1,
                                         -1,
                                         4,
                                         -1,
                                         5,
                                         -1,
                                         8,
                                         -1,
                                         9,
                                         -1,
                                         12,
                                         -1,
                                         13,
                                         -1,
                                         0,
                                         -1,
                                         1,
                                         -1,
                                         4,
                                         -1,
                                         5,
                                         -1,
                                         8,
                                         -1,
                                         9,
                                         -1,
                                         12,
                                         -1,
                                         13,
                                         -1);
  const __m256i second = _mm256_add_epi8(first, _mm256_set1_epi16(2));
  const __m256i nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) isum[r] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    __m256i bytes;
    if constexpr (kFormat == WeightFormat::kQ4_1) {
      bytes = load_256(group + (c % 4) * 64 + half * 32);
      bytes = _mm256_and_si256(c < 4 ? bytes : _mm256_srli_epi16(bytes, 4), nibble);
    } else {
      bytes = load_256(group + c * 64 + half * 32);
    }
    const __m256i words_a = _mm256_shuffle_epi8(bytes, first);
    const __m256i words_b = _mm256_shuffle_epi8(bytes, second);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const int16_t* const row = x + r * kQuantGroup + 4 * c;
      const __m256i a = _mm256_madd_epi16(words_a, broadcast_dword(row));
      const __m256i b = _mm256_madd_epi16(words_b, broadcast_dword(row + 2));
      isum[r] = _mm256_add_epi32(isum[r], _mm256_add_epi32(a, b));
    }
  }
}

template <WeightFormat kFormat, int kRows, typename Use>
SLUICE_INLINE void dot_int16(const std::byte* group, const int16_t* x, Use use) {
  __m256i lo[kRows];
  __m256i hi[kRows];
  dot_int16_half<kFormat, kRows>(group, x, 0, lo);
  dot_int16_half<kFormat, kRows>(group, x, 1, hi);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) use(r, I16{lo[r], hi[r]});
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
