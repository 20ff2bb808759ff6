// SPDX-License-Identifier: Apache-2.0
// vec16.h for AVX2, FMA and F16C.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

struct V16 {
  __m256 lo, hi;
};

struct I16 {
  __m256i lo, hi;
};

struct Mask16 {
  __m256 lo, hi;  // all ones where set
};

SLUICE_INLINE __m256i load_256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

SLUICE_INLINE void store_256(void* p, __m256i a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), a);
}

// The first `count` of 8 lanes; counts outside [0, 8] act as the nearest bound.
SLUICE_INLINE __m256i lane_mask(int32_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

SLUICE_INLINE V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }

SLUICE_INLINE void store(float* p, V16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}

// Loads the first `count` lanes, the others zero; count in [0, 16]. Here and below a full count
// goes without a mask: on a Zen 3 a masked store takes 12 times as long.
SLUICE_INLINE V16 load_partial(const float* p, int32_t count) {
  if (count == 16) return load(p);
  return {_mm256_maskload_ps(p, lane_mask(count)), _mm256_maskload_ps(p + 8, lane_mask(count - 8))};
}

SLUICE_INLINE void store_partial(float* p, V16 a, int32_t count) {
  if (count == 16) return store(p, a);
  _mm256_maskstore_ps(p, lane_mask(count), a.lo);
  _mm256_maskstore_ps(p + 8, lane_mask(count - 8), a.hi);
}

SLUICE_INLINE V16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }

SLUICE_INLINE V16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

SLUICE_INLINE V16 add(V16 a, V16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

SLUICE_INLINE V16 sub(V16 a, V16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

SLUICE_INLINE V16 mul(V16 a, V16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

SLUICE_INLINE V16 div(V16 a, V16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

SLUICE_INLINE V16 fma(V16 a, V16 b, V16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

// max() is a > b ? a : b, min() a < b ? a : b: b where either is NaN.
SLUICE_INLINE V16 max(V16 a, V16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

SLUICE_INLINE V16 min(V16 a, V16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

SLUICE_INLINE V16 abs(V16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

// Rounds to nearest, ties to even; out of range gives INT32_MIN.
SLUICE_INLINE I16 round_to_int(V16 a) {
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}

SLUICE_INLINE V16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

SLUICE_INLINE V16 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}

SLUICE_INLINE __m256 widen_bf16(const uint16_t* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

SLUICE_INLINE V16 load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }

// Loads value / 256 of e4m3 codes, exact: the code's bits are those of the fp16 whose exponent is 8
// lower. 0x7F, its NaN, reads as 480 / 256.
SLUICE_INLINE V16 load_e4m3(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i kept = _mm256_set1_epi16(static_cast<int16_t>(0xBFFF));
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), kept);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}

SLUICE_INLINE void store_half(uint16_t* p, V16 a) {
  constexpr int kRound = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, kRound));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, kRound));
}

SLUICE_INLINE I16 load(const int32_t* p) { return {load_256(p), load_256(p + 8)}; }

SLUICE_INLINE __m128i load_8_bytes(const void* p) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(p));
}

SLUICE_INLINE I16 load_narrow(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(load_8_bytes(p)), _mm256_cvtepu8_epi32(load_8_bytes(p + 8))};
}

SLUICE_INLINE I16 load_narrow(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(load_8_bytes(p)), _mm256_cvtepi8_epi32(load_8_bytes(p + 8))};
}

SLUICE_INLINE void store(int32_t* p, I16 a) {
  store_256(p, a.lo);
  store_256(p + 8, a.hi);
}

SLUICE_INLINE I16 broadcast(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }

SLUICE_INLINE I16 add(I16 a, I16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}

SLUICE_INLINE I16 sub(I16 a, I16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}

SLUICE_INLINE I16 bit_and(I16 a, I16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}

SLUICE_INLINE I16 bit_or(I16 a, I16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}

SLUICE_INLINE I16 shift_left(I16 a, unsigned bits) {
  const int n = static_cast<int>(bits);
  return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}

SLUICE_INLINE I16 shift_right_logical(I16 a, unsigned bits) {
  const int n = static_cast<int>(bits);
  return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}

SLUICE_INLINE I16 shift_right_arithmetic(I16 a, unsigned bits) {
  const int n = static_cast<int>(bits);
  return {_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
}

SLUICE_INLINE I16 bits_of(V16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }

SLUICE_INLINE V16 float_of_bits(I16 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}

SLUICE_INLINE Mask16 less(V16 a, V16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}

SLUICE_INLINE Mask16 less(I16 a, I16 b) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.lo, a.lo)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.hi, a.hi))};
}

SLUICE_INLINE V16 select(Mask16 m, V16 a, V16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

SLUICE_INLINE I16 select(Mask16 m, I16 a, I16 b) {
  return bits_of(select(m, float_of_bits(a), float_of_bits(b)));
}

SLUICE_INLINE I16 max(I16 a, I16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}

// max_lane() and sum_lanes() of integers are exact, so no order is defined.
SLUICE_INLINE int32_t max_lane(I16 a) {
  const __m256i m8 = _mm256_max_epi32(a.lo, a.hi);
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}

SLUICE_INLINE float max_lane(V16 a) {
  const __m256 m8 = _mm256_max_ps(a.lo, a.hi);
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// Lanes folded by halves: l += l + 8, then 4, 2, 1.
SLUICE_INLINE float fold_by_halves(V16 a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// Combines the halves of a and b, or (combine_lanes) the lanes of each half: those that kLow
// chooses with those that kHigh does.
template <int kLow, int kHigh, typename Combine>
SLUICE_INLINE V16 combine_halves(V16 a, V16 b, Combine combine) {
  return combine(
      V16{_mm256_permute2f128_ps(a.lo, b.lo, kLow), _mm256_permute2f128_ps(a.hi, b.hi, kLow)},
      V16{_mm256_permute2f128_ps(a.lo, b.lo, kHigh), _mm256_permute2f128_ps(a.hi, b.hi, kHigh)});
}

template <int kLow, int kHigh, typename Combine>
SLUICE_INLINE V16 combine_lanes(V16 a, V16 b, Combine combine) {
  return combine(V16{_mm256_shuffle_ps(a.lo, b.lo, kLow), _mm256_shuffle_ps(a.hi, b.hi, kLow)},
                 V16{_mm256_shuffle_ps(a.lo, b.lo, kHigh), _mm256_shuffle_ps(a.hi, b.hi, kHigh)});
}

// Lane r of the result is row r folded by halves with `combine`, which takes the lower half first.
// Rows r and r + 8 go side by side.
template <typename Combine>
SLUICE_INLINE V16 fold_rows(const V16* rows, Combine combine) {
  V16 folded[8];  // halves of rows r and r + 8, in an order that brings results out sorted
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int r = i % 2 * 4 + i / 2;
    folded[i] = combine(V16{rows[r].lo, rows[r + 8].lo}, V16{rows[r].hi, rows[r + 8].hi});
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    folded[i] = combine_halves<0x20, 0x31>(folded[2 * i], folded[2 * i + 1], combine);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    folded[i] = combine_lanes<0x44, 0xEE>(folded[2 * i], folded[2 * i + 1], combine);
  }
  return combine_lanes<0x88, 0xDD>(folded[0], folded[1], combine);
}

// Lane j of row i becomes lane i of row j.
SLUICE_INLINE void transpose_8(const __m256i (&rows)[8], __m256i (&out)[8]) {
  __m256i fours[8];  // [4 g + c]: in half i, column 4 i + c of the rows 4 g to 4 g + 3
#pragma GCC unroll 2
  for (int g = 0; g < 8; g += 4) {
    const __m256i low0 = _mm256_unpacklo_epi32(rows[g], rows[g + 1]);
    const __m256i high0 = _mm256_unpackhi_epi32(rows[g], rows[g + 1]);
    const __m256i low1 = _mm256_unpacklo_epi32(rows[g + 2], rows[g + 3]);
    const __m256i high1 = _mm256_unpackhi_epi32(rows[g + 2], rows[g + 3]);
    fours[g] = _mm256_unpacklo_epi64(low0, low1);
    fours[g + 1] = _mm256_unpackhi_epi64(low0, low1);
    fours[g + 2] = _mm256_unpacklo_epi64(high0, high1);
    fours[g + 3] = _mm256_unpackhi_epi64(high0, high1);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    out[c] = _mm256_permute2x128_si256(fours[c], fours[4 + c], 0x20);
    out[4 + c] = _mm256_permute2x128_si256(fours[c], fours[4 + c], 0x31);
  }
}

SLUICE_INLINE void transpose(I16 (&rows)[16]) {
  __m256i quarters[4][8];  // of columns 0 to 7, of columns 8 to 15, each of rows 0 to 7 and 8 to 15
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m256i low[8];
    __m256i high[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      low[i] = rows[8 * half + i].lo;
      high[i] = rows[8 * half + i].hi;
    }
    transpose_8(low, quarters[half]);
    transpose_8(high, quarters[2 + half]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    rows[i] = {quarters[0][i], quarters[1][i]};
    rows[8 + i] = {quarters[2][i], quarters[3][i]};
  }
}

SLUICE_INLINE int32_t sum_lanes(I16 a) {
  const __m256i s8 = _mm256_add_epi32(a.lo, a.hi);
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

// Narrows lanes, which must fit, to words; their order is kept.
SLUICE_INLINE __m256i narrow_to_words(I16 a) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
}

SLUICE_INLINE void store_narrow(int16_t* p, I16 a) { store_256(p, narrow_to_words(a)); }

SLUICE_INLINE void store_narrow(int8_t* p, I16 a) {
  const __m256i words = narrow_to_words(a);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

SLUICE_INLINE float sqrt_float(float x) { return _mm_cvtss_f32(_mm_sqrt_ps(_mm_set_ss(x))); }

SLUICE_INLINE I16 bit_xor(I16 a, I16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}

// Bit i: lane i is set.
SLUICE_INLINE uint32_t mask_bits(Mask16 m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) |
         static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8;
}

// mul_low() and mul_high(): the halves of unsigned 32 x 32 bit products.
SLUICE_INLINE I16 mul_low(I16 a, I16 b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}

SLUICE_INLINE __m256i mul_high_256(__m256i a, __m256i b) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  return _mm256_blend_epi32(even, odd, 0xAA);
}

SLUICE_INLINE I16 mul_high(I16 a, I16 b) {
  return {mul_high_256(a.lo, b.lo), mul_high_256(a.hi, b.hi)};
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
