// SPDX-License-Identifier: Apache-2.0
// Exact dot products of one weight group with VNNI. A zmm holds 4 consecutive k of 16 outputs, so
// one broadcast dword of activations feeds all of them and no sum crosses lanes.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kRowsAtOnce = 8;  // 8 code registers, 8 accumulators, the rest temporaries

struct Codes {
  __m512i chunk[8];
};

template <WeightFormat kFormat>
SLUICE_INLINE Codes load_codes(const std::byte* group) {
  Codes codes;
  if constexpr (kFormat == WeightFormat::kQ4_1) {
    const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512i pair = _mm512_loadu_si512(group + c * 64);
      codes.chunk[c] = _mm512_and_si512(pair, nibble);
      codes.chunk[c + 4] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), nibble);
    }
  } else {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) codes.chunk[c] = _mm512_loadu_si512(group + c * 64);
  }
  return codes;
}

SLUICE_INLINE __m512i broadcast_dword(const void* p) {
  int32_t dword;
  std::memcpy(&dword, p, sizeof(dword));
  return _mm512_set1_epi32(dword);
}

// use(r, dot) for each of kRows rows of 32 codes each, one after the other.
template <WeightFormat kFormat, int kRows, typename Use>
SLUICE_INLINE void dot_int8(const std::byte* group, const int8_t* x, Use use) {
  const Codes codes = load_codes<kFormat>(group);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const int8_t* const row = x + r * kQuantGroup;
    __m512i even = _mm512_setzero_si512();
    __m512i odd = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int c = 0; c < 8; c += 2) {
      even = _mm512_dpbusd_epi32(even, codes.chunk[c], broadcast_dword(row + 4 * c));
      odd = _mm512_dpbusd_epi32(odd, codes.chunk[c + 1], broadcast_dword(row + 4 * c + 4));
    }
    use(r, I16{_mm512_add_epi32(even, odd)});
  }
}

template <WeightFormat kFormat, int kRows, typename Use>
SLUICE_INLINE void dot_int16(const std::byte* group, const int16_t* x, Use use) {
  const Codes codes = load_codes<kFormat>(group);
  const __m512i low_words = _mm512_set1_epi64(static_cast<int64_t>(0x8005800480018000));
  const __m512i first = _mm512_mask_blend_epi64(
      0xAA, low_words, _mm512_set1_epi64(static_cast<int64_t>(0x800D800C80098008)));
  const __m512i second = _mm512_add_epi8(first, _mm512_set1_epi16(2));
  __m512i words[16];
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    words[2 * c] = _mm512_shuffle_epi8(codes.chunk[c], first);
    words[2 * c + 1] = _mm512_shuffle_epi8(codes.chunk[c], second);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const int16_t* const row = x + r * kQuantGroup;
    __m512i even = _mm512_setzero_si512();
    __m512i odd = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int p = 0; p < 16; p += 2) {
      even = _mm512_dpwssd_epi32(even, words[p], broadcast_dword(row + 2 * p));
      odd = _mm512_dpwssd_epi32(odd, words[p + 1], broadcast_dword(row + 2 * p + 2));
    }
    use(r, I16{_mm512_add_epi32(even, odd)});
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
