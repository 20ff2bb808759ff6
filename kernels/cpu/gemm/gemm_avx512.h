// SPDX-License-Identifier: Apache-2.0
// Codes of one weight group and their exact dot products with VNNI. A zmm holds 4 consecutive k of
// 16 outputs, so one broadcast dword of activations feeds all of them and no sum crosses lanes.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kRowsAtOnce = 8;  // 8 code registers, 8 accumulators, the rest temporaries

struct Codes {
  __m512i chunk[8];  // unsigned, kZeroPoint too high
};

// Returns the bits [from, from + count) of every byte, moved to `to`.
template <int from, int count, int to>
SLUICE_INLINE __m512i move_bits(__m512i v) {
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(((1 << count) - 1) << to));
  if constexpr (from > to) v = _mm512_srli_epi16(v, from - to);
  if constexpr (from < to) v = _mm512_slli_epi16(v, to - from);
  return _mm512_and_si512(v, mask);
}

template <WeightFormat kFormat, int c>
SLUICE_INLINE __m512i load_chunk(const std::byte* group) {
  constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
  const auto plane = [group](int i) { return _mm512_loadu_si512(group + i * 64); };
  __m512i codes;
  if constexpr (kLayout.low_bits == 8) {
    codes = plane(c);
  } else if constexpr (kLayout.low_bits == 4) {
    codes = move_bits<c / 4 * 4, 4, 0>(plane(c % 4));
  } else {
    codes = move_bits<c % 4 * 2, 2, 0>(plane(c / 4));
  }
  constexpr int kHigh = kLayout.low_bits;  // the register that the high plane begins with
  if constexpr (kLayout.high_bits == 1) {
    codes = _mm512_or_si512(codes, move_bits<c, 1, kHigh>(plane(kHigh)));
  } else if constexpr (kLayout.high_bits == 2) {
    codes = _mm512_or_si512(codes, move_bits<c % 4 * 2, 2, kHigh>(plane(kHigh + c / 4)));
  }
  if constexpr (kHasCodebook<kFormat>) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kCodebook<kFormat>.v));
    codes = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
  }
  return codes;
}

template <WeightFormat kFormat>
SLUICE_INLINE Codes load_codes(const std::byte* group) {
  return {{load_chunk<kFormat, 0>(group),
           load_chunk<kFormat, 1>(group),
           load_chunk<kFormat, 2>(group),
           load_chunk<kFormat, 3>(group),
           load_chunk<kFormat, 4>(group),
           load_chunk<kFormat, 5>(group),
           load_chunk<kFormat, 6>(group),
           load_chunk<kFormat, 7>(group)}};
}

// Returns isum + negated * code_sum. Negated zero points are -256 to 255; the sum of 32 codes of 8
// bits fits a 16-bit word. The product's upper word is times zero.
SLUICE_INLINE I16 take_zeros(I16 isum, I16 negated, int32_t code_sum) {
  return {_mm512_dpwssd_epi32(isum.v, negated.v, _mm512_set1_epi32(code_sum & 0xFFFF))};
}

SLUICE_INLINE __m512i broadcast_dword(const void* p) {
  int32_t dword;
  std::memcpy(&dword, p, sizeof(dword));
  return _mm512_set1_epi32(dword);
}

// Calls use(r, first, second) for each of kRows rows of 32 codes each: begin(r, half) plus the dot
// products of the first and second 16 k where the format has scales for each (kHalves), else that
// of all 32 twice.
template <WeightFormat kFormat, int kRows, typename Begin, typename Use>
SLUICE_INLINE void dot_int8(const std::byte* group, const int8_t* x, Begin begin, Use use) {
  const Codes codes = load_codes<kFormat>(group);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const int8_t* const row = x + r * kQuantGroup;
    __m512i first = _mm512_set1_epi32(begin(r, 0));
    __m512i second = kHalves<kFormat> ? _mm512_set1_epi32(begin(r, 1)) : _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      first = _mm512_dpbusd_epi32(first, codes.chunk[c], broadcast_dword(row + 4 * c));
      second = _mm512_dpbusd_epi32(second, codes.chunk[c + 4], broadcast_dword(row + 4 * c + 16));
    }
    if constexpr (!kHalves<kFormat>) first = second = _mm512_add_epi32(first, second);
    use(r, I16{first}, I16{second});
  }
}

// Returns bytes 0 and 1 of every dword (pair 0), or 2 and 3 (pair 1), zero-extended to words.
SLUICE_INLINE __m512i widen_pair(__m512i codes, int pair) {
  const __m512i low_words = _mm512_set1_epi64(static_cast<int64_t>(0x8005800480018000));
  const __m512i first = _mm512_mask_blend_epi64(
      0xAA, low_words, _mm512_set1_epi64(static_cast<int64_t>(0x800D800C80098008)));
  return _mm512_shuffle_epi8(codes, _mm512_add_epi8(first, _mm512_set1_epi16(2 * pair)));
}

// dot_int8() for int16 codes.
template <WeightFormat kFormat, int kRows, typename Begin, typename Use>
SLUICE_INLINE void dot_int16(const std::byte* group, const int16_t* x, Begin begin, Use use) {
  const Codes codes = load_codes<kFormat>(group);
  __m512i words[16];
#pragma GCC unroll 16
  for (int p = 0; p < 16; ++p) words[p] = widen_pair(codes.chunk[p / 2], p % 2);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const int16_t* const row = x + r * kQuantGroup;
    __m512i first = _mm512_set1_epi32(begin(r, 0));
    __m512i second = kHalves<kFormat> ? _mm512_set1_epi32(begin(r, 1)) : _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int p = 0; p < 8; ++p) {
      first = _mm512_dpwssd_epi32(first, words[p], broadcast_dword(row + 2 * p));
      second = _mm512_dpwssd_epi32(second, words[p + 8], broadcast_dword(row + 2 * p + 16));
    }
    if constexpr (!kHalves<kFormat>) first = second = _mm512_add_epi32(first, second);
    use(r, I16{first}, I16{second});
  }
}

// Writes codes, less the zero point, as [16 k pairs][16 outputs][2 k].
template <WeightFormat kFormat>
SLUICE_INLINE void widen_codes(const std::byte* group, int16_t* words) {
  const Codes codes = load_codes<kFormat>(group);
  const __m512i zero_point = _mm512_set1_epi16(kZeroPoint<kFormat>);
#pragma GCC unroll 16
  for (int p = 0; p < 16; ++p) {
    const __m512i pair = widen_pair(codes.chunk[p / 2], p % 2);
    _mm512_storeu_si512(words + 32 * p, _mm512_sub_epi16(pair, zero_point));
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
