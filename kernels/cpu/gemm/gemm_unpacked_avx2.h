// SPDX-License-Identifier: Apache-2.0
// A group of gemm_unpacked_impl.h without VNNI, with codes as gemm_avx2.h unpacks them. One tile
// at a time: the 16-bit sums of its halves times four rows take half of the registers.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kUnpackedAtOnce = 1;
inline constexpr bool kPassesUnpack = false;

// A group of a tile in the form that the dot products read.
template <WeightFormat kFormat>
struct UnpackedBytes {
  static constexpr int kSums = kHalves<kFormat> ? 2 : 1;

  CodePair codes[8][kPairsPerChunk<kFormat>];
  V16 scales[kHasSecond<kFormat> ? 2 * kSums : kSums];  // then minimum
};

template <WeightFormat kFormat>
SLUICE_INLINE void unpack_codes(const std::byte* group, UnpackedBytes<kFormat>& unpacked) {
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
#pragma GCC unroll 2
    for (int pair = 0; pair < kPairsPerChunk<kFormat>; ++pair) {
      unpacked.codes[c][pair] = load_pair<kFormat>(group, c, pair);
    }
  }
}

SLUICE_INLINE I16 fresh_zeros() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }

// acc[r] += a group, by the tree.
template <WeightFormat kFormat>
SLUICE_INLINE void add_unpacked_group(const UnpackedBytes<kFormat>* unpacked,
                                      const RecordRows<int8_t>& x,
                                      V16* acc) {
  const auto pair_at = [&](int c, int pair) __attribute__((always_inline)) {
    // Two loads, since g++ copies the pair by halves of a register, through the stack.
    const CodePair& codes = unpacked->codes[c][pair];
    return CodePair{load_256(&codes.first), load_256(&codes.second)};
  };
  const auto begin = [&](int r, int half) __attribute__((always_inline)) {
    return first_of_sum<kFormat>(x, r, half);
  };
  const auto use = [&](int r, int half, I16 sum) __attribute__((always_inline)) {
    constexpr int kSums = UnpackedBytes<kFormat>::kSums;
    const V16 minimum = kHasSecond<kFormat> ? unpacked->scales[kSums + half] : zero();
    acc[r] = add_sum<kFormat>(acc[r], sum, unpacked->scales[half], minimum, x, r, half);
  };
  dot_pairs<kFormat, kUnpackedRows>(x.codes, pair_at, begin, use);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
