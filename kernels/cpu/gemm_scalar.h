// SPDX-License-Identifier: Apache-2.0
// Exact dot products of one weight group in plain C++.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kRowsAtOnce = 4;

// use(r, dot) for each of kRows rows of 32 codes each, one after the other.
template <WeightFormat kFormat, int kRows, typename Code, typename Use>
SLUICE_INLINE void dot_codes(const std::byte* group, const Code* x, Use use) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(group);
  for (int r = 0; r < kRows; ++r) {
    I16 isum = broadcast(0);
    for (int k = 0; k < kQuantGroup; ++k) {
      const int32_t a = x[r * kQuantGroup + k];
      for (int output = 0; output < kRowTile; ++output) {
        int32_t code;
        if constexpr (kFormat == WeightFormat::kQ4_1) {
          const int32_t pair = bytes[(k % 16 / 4 * kRowTile + output) * 4 + k % 4];
          code = k < 16 ? pair & 15 : pair >> 4;
        } else {
          code = bytes[(k / 4 * kRowTile + output) * 4 + k % 4];
        }
        isum.v[output] += code * a;
      }
    }
    use(r, isum);
  }
}

template <WeightFormat kFormat, int kRows, typename Use>
SLUICE_INLINE void dot_int8(const std::byte* group, const int8_t* x, Use use) {
  dot_codes<kFormat, kRows>(group, x, use);
}

template <WeightFormat kFormat, int kRows, typename Use>
SLUICE_INLINE void dot_int16(const std::byte* group, const int16_t* x, Use use) {
  dot_codes<kFormat, kRows>(group, x, use);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
