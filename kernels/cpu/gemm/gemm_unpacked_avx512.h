// SPDX-License-Identifier: Apache-2.0
// A group of gemm_unpacked_impl.h with VNNI. Four rows at a time have all their sums of three
// tiles in registers, 12 exact ones and 12 of the tree: a load of weights serves four dot products
// and one of activations three, and the multiplying pipes have little but the tree to do.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kUnpackedAtOnce = 3;
inline constexpr bool kPassesUnpack = true;  // if LinearBlock says so

// A group of a tile in the form that the dot products read.
template <WeightFormat kFormat>
struct UnpackedBytes {
  static constexpr int kSums = kHalves<kFormat> ? 2 : 1;

  __m512i codes[8];                                     // in the layout of Codes
  V16 scales[kHasSecond<kFormat> ? 2 * kSums : kSums];  // then minimum
};

template <WeightFormat kFormat>
SLUICE_INLINE void unpack_codes(const std::byte* group, UnpackedBytes<kFormat>& unpacked) {
  const Codes codes = load_codes<kFormat>(group);
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) unpacked.codes[c] = codes.chunk[c];
}

// Returns new zeros. Making them occupies no execution port, while copying a register of zeros may.
// Without volatile the compiler makes them once and copies.
SLUICE_INLINE I16 fresh_zeros() {
  __m512i zeros;
  asm volatile("vpxord %0, %0, %0" : "=v"(zeros));
  return {zeros};
}

template <int c, WeightFormat kFormat>
SLUICE_INLINE __m512i codes_of(const UnpackedBytes<kFormat>& unpacked) {
  return unpacked.codes[c];
}

template <int c, WeightFormat kFormat>
SLUICE_INLINE __m512i codes_of(const PackedBytes<kFormat>& packed) {
  return load_chunk<kFormat, c>(packed.at.codes);
}

// Scales of one half, or of the whole group.
struct HalfScales {
  V16 scale;
  V16 minimum;
};

template <WeightFormat kFormat>
SLUICE_INLINE HalfScales scales_of(const UnpackedBytes<kFormat>& unpacked, int h) {
  return {unpacked.scales[h],
          kHasSecond<kFormat> ? unpacked.scales[UnpackedBytes<kFormat>::kSums + h] : zero()};
}

template <WeightFormat kFormat>
SLUICE_INLINE HalfScales scales_of(const PackedBytes<kFormat>& packed, int h) {
  const GroupScales scales = load_scales<kFormat>(packed.at);
  return {scales.scale[h], scales.minimum[h]};
}

// sum[t][r] += chunk c of each tile times each row.
template <int c, typename Group>
SLUICE_INLINE void add_chunk(const Group* tiles,
                             const RecordRows<int8_t>& x,
                             I16 (&sum)[kUnpackedAtOnce][kUnpackedRows]) {
#pragma GCC unroll 4
  for (int r = 0; r < kUnpackedRows; ++r) {
    const __m512i a = broadcast_dword(x.codes + r * kQuantGroup + 4 * c);
#pragma GCC unroll 3
    for (int t = 0; t < kUnpackedAtOnce; ++t) {
      sum[t][r].v = _mm512_dpbusd_epi32(sum[t][r].v, codes_of<c>(tiles[t]), a);
    }
  }
}

// acc[t * kUnpackedRows + r] += a group, by the tree.
template <WeightFormat kFormat, typename Group>
SLUICE_INLINE void add_unpacked_group(const Group* tiles, const RecordRows<int8_t>& x, V16* acc) {
  constexpr int kSums = UnpackedBytes<kFormat>::kSums;
#pragma GCC unroll 2
  for (int h = 0; h < kSums; ++h) {
    I16 sum[kUnpackedAtOnce][kUnpackedRows];
#pragma GCC unroll 4
    for (int r = 0; r < kUnpackedRows; ++r) {
#pragma GCC unroll 3
      for (int t = 0; t < kUnpackedAtOnce; ++t) {
        sum[t][r] =
            kZeroPoint<kFormat> == 0 ? fresh_zeros() : broadcast(first_of_sum<kFormat>(x, r, h));
      }
    }
    if (h == 0) {
      add_chunk<0>(tiles, x, sum);
      add_chunk<1>(tiles, x, sum);
      add_chunk<2>(tiles, x, sum);
      add_chunk<3>(tiles, x, sum);
    }
    if (h == kSums - 1) {
      add_chunk<4>(tiles, x, sum);
      add_chunk<5>(tiles, x, sum);
      add_chunk<6>(tiles, x, sum);
      add_chunk<7>(tiles, x, sum);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kUnpackedRows; ++r) {
#pragma GCC unroll 3
      for (int t = 0; t < kUnpackedAtOnce; ++t) {
        V16& y = acc[t * kUnpackedRows + r];
        const HalfScales w = scales_of(tiles[t], h);
        y = add_sum<kFormat>(y, sum[t][r], w.scale, w.minimum, x, r, h);
      }
    }
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
