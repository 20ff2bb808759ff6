// SPDX-License-Identifier: Apache-2.0
// e4m3 codes to bf16 in plain C++, for e4m3_impl.h.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kPairTiles = 1;
inline constexpr int kPairBytes = 16384;  // decoded at a time
inline constexpr int kPairRows = 1;       // rows of a pass; four would compile for half a minute

// 64 codes in the layout of a tile: 16 outputs of two columns, and of the next two.
struct TwoPairs {
  I16 first;
  I16 second;
};

SLUICE_INLINE const uint8_t* load_codes_64(const std::byte* codes) { return bytes_at(codes); }

SLUICE_INLINE uint32_t bf16_of_e4m3(uint8_t code) {
  const uint32_t exponent = code >> 3 & 15U;
  const uint32_t mantissa = code & 7U;
  float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
  if (exponent > 0) {
    const uint32_t bits = (exponent + 120) << 23 | mantissa << 20;
    std::memcpy(&magnitude, &bits, sizeof(magnitude));
  }
  uint32_t bits;
  std::memcpy(&bits, &magnitude, sizeof(bits));
  return bits >> 16 | (code & 0x80U) << 8;
}

SLUICE_INLINE TwoPairs decode_e4m3(const uint8_t* codes) {
  TwoPairs two;
  for (int r = 0; r < kRowTile; ++r) {
    const uint8_t* const own = codes + r / 4 * 16 + r % 4 * 2;
    two.first.v[r] = static_cast<int32_t>(bf16_of_e4m3(own[0]) | bf16_of_e4m3(own[1]) << 16);
    two.second.v[r] = static_cast<int32_t>(bf16_of_e4m3(own[8]) | bf16_of_e4m3(own[9]) << 16);
  }
  return two;
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
