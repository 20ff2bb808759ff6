// SPDX-License-Identifier: Apache-2.0
// Codes of one weight group and their exact dot products in plain C++.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kRowsAtOnce = 4;

// Returns the stored code of (k, output) from its planes.
template <WeightFormat kFormat>
SLUICE_INLINE int32_t stored_code(const uint8_t* group, int k, int output) {
  constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
  const int c = k / 4;
  const auto plane = [&](int i) { return group[i * 64 + output * 4 + k % 4]; };
  int32_t code;
  if constexpr (kLayout.low_bits == 8) {
    code = plane(c);
  } else if constexpr (kLayout.low_bits == 4) {
    code = (plane(c % 4) >> (c / 4 * 4)) & 15;
  } else {
    code = (plane(c / 4) >> (c % 4 * 2)) & 3;
  }
  constexpr int kHigh = kLayout.low_bits;  // the register that the high plane begins with
  if constexpr (kLayout.high_bits == 1) {
    code |= ((plane(kHigh) >> c) & 1) << kHigh;
  } else if constexpr (kLayout.high_bits == 2) {
    code |= ((plane(kHigh + c / 4) >> (c % 4 * 2)) & 3) << kHigh;
  }
  return code;
}

// Writes codes, less the zero point, as [16 k pairs][16 outputs][2 k].
template <WeightFormat kFormat>
SLUICE_INLINE void widen_codes(const std::byte* group, int16_t* words) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(group);
  for (int k = 0; k < kQuantGroup; ++k) {
    for (int output = 0; output < kRowTile; ++output) {
      int32_t code = stored_code<kFormat>(bytes, k, output);
      if constexpr (kHasCodebook<kFormat>) code = kCodebook<kFormat>.v[code];
      words[k / 2 * 32 + output * 2 + k % 2] = static_cast<int16_t>(code - kZeroPoint<kFormat>);
    }
  }
}

// Calls use(r, first, second) for each of kRows rows of 32 codes each, with the dot products of the
// first and second 16 k.
template <int kRows, typename Code, typename Use>
SLUICE_INLINE void dot_words(const int16_t* words, const Code* x, Use use) {
  for (int r = 0; r < kRows; ++r) {
    I16 sum[2] = {broadcast(0), broadcast(0)};
    for (int k = 0; k < kQuantGroup; ++k) {
      const int32_t a = x[r * kQuantGroup + k];
      for (int output = 0; output < kRowTile; ++output) {
        sum[k / 16].v[output] += words[k / 2 * 32 + output * 2 + k % 2] * a;
      }
    }
    use(r, sum[0], sum[1]);
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
