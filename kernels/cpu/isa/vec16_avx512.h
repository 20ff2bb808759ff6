// SPDX-License-Identifier: Apache-2.0
// vec16.h for AVX-512 F/BW/DQ/VL.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

struct V16 {
  __m512 v;
};

struct I16 {
  __m512i v;
};

struct Mask16 {
  __mmask16 m;
};

SLUICE_INLINE V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }

SLUICE_INLINE void store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }

// Loads the first `count` lanes, the others zero; count in [0, 16].
SLUICE_INLINE V16 load_partial(const float* p, int32_t count) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1), p)};
}

SLUICE_INLINE void store_partial(float* p, V16 a, int32_t count) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << count) - 1), a.v);
}

SLUICE_INLINE V16 broadcast(float x) { return {_mm512_set1_ps(x)}; }

SLUICE_INLINE V16 zero() { return {_mm512_setzero_ps()}; }

SLUICE_INLINE V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }

SLUICE_INLINE V16 sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }

SLUICE_INLINE V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }

SLUICE_INLINE V16 div(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }

SLUICE_INLINE V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

// max() is a > b ? a : b, min() a < b ? a : b: b where either is NaN.
SLUICE_INLINE V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }

SLUICE_INLINE V16 min(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }

SLUICE_INLINE V16 abs(V16 a) { return {_mm512_abs_ps(a.v)}; }

// Rounds to nearest, ties to even; out of range gives INT32_MIN.
SLUICE_INLINE I16 round_to_int(V16 a) { return {_mm512_cvtps_epi32(a.v)}; }

SLUICE_INLINE V16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

SLUICE_INLINE V16 load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

// Moves words to the upper halves of dwords by one permutation; widening and shifting would be two
// operations.
SLUICE_INLINE V16 load_bf16(const uint16_t* p) {
  constexpr __mmask32 kUpper = 0xAAAAAAAA;
  const __m512i places = _mm512_set_epi64(0x000F0000000E0000,
                                          0x000D0000000C0000,
                                          0x000B0000000A0000,
                                          0x0009000000080000,
                                          0x0007000000060000,
                                          0x0005000000040000,
                                          0x0003000000020000,
                                          0x0001000000000000);
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(kUpper, places, _mm512_castsi256_si512(words)))};
}

// Loads value / 256 of e4m3 codes, exact: the code's bits are those of the fp16 whose exponent is 8
// lower. 0x7F, its NaN, reads as 480 / 256.
SLUICE_INLINE V16 load_e4m3(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i kept = _mm256_set1_epi16(static_cast<int16_t>(0xBFFF));
  return {_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), kept))};
}

SLUICE_INLINE void store_half(uint16_t* p, V16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

SLUICE_INLINE I16 load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }

SLUICE_INLINE I16 load_narrow(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

SLUICE_INLINE I16 load_narrow(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

SLUICE_INLINE void store(int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }

SLUICE_INLINE I16 broadcast(int32_t x) { return {_mm512_set1_epi32(x)}; }

SLUICE_INLINE I16 add(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }

SLUICE_INLINE I16 sub(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }

SLUICE_INLINE I16 bit_and(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }

SLUICE_INLINE I16 bit_or(I16 a, I16 b) { return {_mm512_or_si512(a.v, b.v)}; }

SLUICE_INLINE I16 shift_left(I16 a, unsigned bits) { return {_mm512_slli_epi32(a.v, bits)}; }

SLUICE_INLINE I16 shift_right_logical(I16 a, unsigned bits) {
  return {_mm512_srli_epi32(a.v, bits)};
}

SLUICE_INLINE I16 shift_right_arithmetic(I16 a, unsigned bits) {
  return {_mm512_srai_epi32(a.v, bits)};
}

SLUICE_INLINE I16 bits_of(V16 a) { return {_mm512_castps_si512(a.v)}; }

SLUICE_INLINE V16 float_of_bits(I16 a) { return {_mm512_castsi512_ps(a.v)}; }

SLUICE_INLINE Mask16 less(V16 a, V16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }

SLUICE_INLINE Mask16 less(I16 a, I16 b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }

SLUICE_INLINE V16 select(Mask16 m, V16 a, V16 b) { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }

SLUICE_INLINE I16 select(Mask16 m, I16 a, I16 b) {
  return {_mm512_mask_blend_epi32(m.m, b.v, a.v)};
}

SLUICE_INLINE I16 max(I16 a, I16 b) { return {_mm512_max_epi32(a.v, b.v)}; }

// max_lane() and sum_lanes() of integers are exact, so no order is defined.
SLUICE_INLINE int32_t max_lane(I16 a) { return _mm512_reduce_max_epi32(a.v); }

SLUICE_INLINE float max_lane(V16 a) { return _mm512_reduce_max_ps(a.v); }

// Lanes folded by halves: l += l + 8, then 4, 2, 1.
SLUICE_INLINE float fold_by_halves(V16 a) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// Combines the quarters of a and b, or (combine_lanes) the lanes of each quarter: those that kLow
// chooses with those that kHigh does.
template <int kLow, int kHigh, typename Combine>
SLUICE_INLINE V16 combine_quarters(V16 a, V16 b, Combine combine) {
  return combine(V16{_mm512_shuffle_f32x4(a.v, b.v, kLow)},
                 V16{_mm512_shuffle_f32x4(a.v, b.v, kHigh)});
}

template <int kLow, int kHigh, typename Combine>
SLUICE_INLINE V16 combine_lanes(V16 a, V16 b, Combine combine) {
  return combine(V16{_mm512_shuffle_ps(a.v, b.v, kLow)}, V16{_mm512_shuffle_ps(a.v, b.v, kHigh)});
}

// Lane r of the result is row r folded by halves with `combine`, which takes the lower half first.
// Halves of several rows share a register.
template <typename Combine>
SLUICE_INLINE V16 fold_rows(const V16* rows, Combine combine) {
  V16 folded[16];  // quarters of 4 rows, in an order that brings results out sorted
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) folded[i] = rows[i % 4 * 4 + i / 4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    folded[i] = combine_quarters<0x44, 0xEE>(folded[2 * i], folded[2 * i + 1], combine);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    folded[i] = combine_quarters<0x88, 0xDD>(folded[2 * i], folded[2 * i + 1], combine);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    folded[i] = combine_lanes<0x44, 0xEE>(folded[2 * i], folded[2 * i + 1], combine);
  }
  return combine_lanes<0x88, 0xDD>(folded[0], folded[1], combine);
}

// Lane j of row i becomes lane i of row j.
SLUICE_INLINE void transpose(I16 (&rows)[16]) {
  __m512i fours[16];  // [4 g + c]: in quarter i, column 4 i + c of the rows 4 g to 4 g + 3
#pragma GCC unroll 4
  for (int g = 0; g < 16; g += 4) {
    const __m512i low0 = _mm512_unpacklo_epi32(rows[g].v, rows[g + 1].v);
    const __m512i high0 = _mm512_unpackhi_epi32(rows[g].v, rows[g + 1].v);
    const __m512i low1 = _mm512_unpacklo_epi32(rows[g + 2].v, rows[g + 3].v);
    const __m512i high1 = _mm512_unpackhi_epi32(rows[g + 2].v, rows[g + 3].v);
    fours[g] = _mm512_unpacklo_epi64(low0, low1);
    fours[g + 1] = _mm512_unpackhi_epi64(low0, low1);
    fours[g + 2] = _mm512_unpacklo_epi64(high0, high1);
    fours[g + 3] = _mm512_unpackhi_epi64(high0, high1);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even0 = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0x88);
    const __m512i odd0 = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0xDD);
    const __m512i even1 = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0x88);
    const __m512i odd1 = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0xDD);
    rows[c].v = _mm512_shuffle_i32x4(even0, even1, 0x88);
    rows[4 + c].v = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
    rows[8 + c].v = _mm512_shuffle_i32x4(even0, even1, 0xDD);
    rows[12 + c].v = _mm512_shuffle_i32x4(odd0, odd1, 0xDD);
  }
}

SLUICE_INLINE int32_t sum_lanes(I16 a) { return _mm512_reduce_add_epi32(a.v); }

// Narrows lanes, which must fit int8 or int16.
SLUICE_INLINE void store_narrow(int8_t* p, I16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

SLUICE_INLINE void store_narrow(int16_t* p, I16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}

// store_codes() of quantize_impl.h, with one sum of differences for both sums.
SLUICE_INLINE int32_t store_codes(int8_t* p, I16 a, I16 b, int32_t* sum_of_a) {
  const __m512i words = _mm512_packs_epi32(a.v, b.v);  // 4 of a, 4 of b, by 128 bits
  const __m256i mixed =
      _mm256_packs_epi16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
  const __m256i codes =
      _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), codes);
  // Sums of 8 unsigned bytes each; every byte is 128 too high.
  const __m256i high = _mm256_set1_epi8(static_cast<char>(0x80));
  alignas(32) int64_t eights[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(eights),
                     _mm256_sad_epu8(_mm256_xor_si256(codes, high), _mm256_setzero_si256()));
  *sum_of_a = static_cast<int32_t>(eights[0] + eights[1]) - 16 * 128;
  return *sum_of_a + static_cast<int32_t>(eights[2] + eights[3]) - 16 * 128;
}

SLUICE_INLINE float sqrt_float(float x) { return _mm_cvtss_f32(_mm_sqrt_ps(_mm_set_ss(x))); }

SLUICE_INLINE I16 bit_xor(I16 a, I16 b) { return {_mm512_xor_si512(a.v, b.v)}; }

// Bit i: lane i is set.
SLUICE_INLINE uint32_t mask_bits(Mask16 m) { return m.m; }

// mul_low() and mul_high(): the halves of unsigned 32 x 32 bit products.
SLUICE_INLINE I16 mul_low(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }

SLUICE_INLINE I16 mul_high(I16 a, I16 b) {
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a.v, b.v), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  return {_mm512_mask_blend_epi32(0xAAAA, even, odd)};
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
