// SPDX-License-Identifier: Apache-2.0
// e4m3 codes to bf16 with AVX-512 BW, for e4m3_impl.h.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kPairTiles = 3;      // sums of four rows, twice, fit the registers
inline constexpr int kPairBytes = 18432;  // decoded at a time, of L1
inline constexpr int kPairRows = 4;       // rows of a pass

// 64 codes in the layout of a tile: 16 outputs of two columns, and of the next two.
struct TwoPairs {
  I16 first;
  I16 second;
};

SLUICE_INLINE __m512i load_codes_64(const std::byte* codes) { return _mm512_loadu_si512(codes); }

// Returns a register with these 16 bytes in each quarter.
SLUICE_INLINE __m512i table_of(uint64_t low, uint64_t high) {
  const auto first = static_cast<int64_t>(low);
  const auto second = static_cast<int64_t>(high);
  return _mm512_broadcast_i32x4(_mm_set_epi64x(second, first));
}

// A bf16 is the sign, the exponent + 120 and the mantissa: its upper byte depends on the exponent
// alone, its lower one on the code's low four bits, shifted up. Subnormal codes, 0 to 7 times 2^-9,
// have entries of their own.
SLUICE_INLINE TwoPairs decode_e4m3(__m512i codes) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i low_bits = _mm512_and_si512(codes, nibble);
  const __m512i exponent = _mm512_and_si512(_mm512_srli_epi16(codes, 3), nibble);
  const __m512i upper = table_of(0x3F3F3E3E3D3D3C3C, 0x4343424241414040);
  __m512i high = _mm512_shuffle_epi8(upper, exponent);
  __m512i low = _mm512_slli_epi16(low_bits, 4);
  const __mmask64 small = _mm512_testn_epi8_mask(codes, _mm512_set1_epi8(0x78));
  high = _mm512_mask_shuffle_epi8(high, small, table_of(0x3C3C3C3C3B3B3B00, 0), low_bits);
  low = _mm512_mask_shuffle_epi8(low, small, table_of(0x60402000C0800000, 0), low_bits);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  high = _mm512_ternarylogic_epi32(high, codes, sign, 0xF8);  // high | (codes & sign)
  return {{_mm512_unpacklo_epi8(low, high)}, {_mm512_unpackhi_epi8(low, high)}};
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
