// SPDX-License-Identifier: Apache-2.0
// e4m3 codes to bf16 with AVX2, for e4m3_impl.h.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kPairTiles = 1;      // sums of four rows take half of the registers
inline constexpr int kPairBytes = 16384;  // decoded at a time, of L1
inline constexpr int kPairRows = 4;       // rows of a pass

// 64 codes in the layout of a tile: 16 outputs of two columns, and of the next two.
struct TwoPairs {
  I16 first;
  I16 second;
};

SLUICE_INLINE I16 load_codes_64(const std::byte* codes) {
  return {load_256(codes), load_256(codes + 32)};
}

// Returns a register with these 16 bytes in each half.
SLUICE_INLINE __m256i table_of(uint64_t low, uint64_t high) {
  const auto first = static_cast<int64_t>(low);
  const auto second = static_cast<int64_t>(high);
  return _mm256_broadcastsi128_si256(_mm_set_epi64x(second, first));
}

// A bf16 is the sign, exponent + 120 and the mantissa: the upper byte depends on the exponent
// alone, the lower one on the code's low four bits, shifted up. Subnormal codes, 0 to 7 times 2^-9,
// have entries of their own.
SLUICE_INLINE void decode_half(__m256i codes, __m256i& first, __m256i& second) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i low_bits = _mm256_and_si256(codes, nibble);
  const __m256i exponent = _mm256_and_si256(_mm256_srli_epi16(codes, 3), nibble);
  const __m256i small = _mm256_cmpeq_epi8(exponent, _mm256_setzero_si256());
  const __m256i upper = table_of(0x3F3F3E3E3D3D3C3C, 0x4343424241414040);
  __m256i high = _mm256_shuffle_epi8(upper, exponent);
  __m256i low = _mm256_slli_epi16(low_bits, 4);
  high = _mm256_blendv_epi8(
      high, _mm256_shuffle_epi8(table_of(0x3C3C3C3C3B3B3B00, 0), low_bits), small);
  low = _mm256_blendv_epi8(
      low, _mm256_shuffle_epi8(table_of(0x60402000C0800000, 0), low_bits), small);
  const __m256i sign = _mm256_and_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
  high = _mm256_or_si256(high, sign);
  first = _mm256_unpacklo_epi8(low, high);
  second = _mm256_unpackhi_epi8(low, high);
}

SLUICE_INLINE TwoPairs decode_e4m3(I16 codes) {
  TwoPairs two;
  decode_half(codes.lo, two.first.lo, two.second.lo);
  decode_half(codes.hi, two.first.hi, two.second.hi);
  return two;
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
