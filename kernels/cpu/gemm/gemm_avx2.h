// SPDX-License-Identifier: Apache-2.0
// Codes of one weight group and their exact dot products without VNNI. vpmaddubsw adds two products
// in 16 bits and saturates, so 16-bit sums are widened before codes could overflow them, and full
// bytes are multiplied as two nibbles.
#pragma once

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kRowsAtOnce = 4;

SLUICE_INLINE __m256i broadcast_dword(const void* p) {
  int32_t dword;
  std::memcpy(&dword, p, sizeof(dword));
  return _mm256_set1_epi32(dword);
}

// Returns isum + negated * code_sum. Negated zero points are -256 to 255; the sum of 32 codes of 8
// bits fits a 16-bit word. The product's upper word is times zero.
SLUICE_INLINE I16 take_zeros(I16 isum, I16 negated, int32_t code_sum) {
  const __m256i words = _mm256_set1_epi32(code_sum & 0xFFFF);
  return add(isum, {_mm256_madd_epi16(negated.lo, words), _mm256_madd_epi16(negated.hi, words)});
}

// Returns the bits [from, from + count) of every byte, moved to `to`.
SLUICE_INLINE __m256i move_bits(__m256i v, int from, int count, int to) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(((1 << count) - 1) << to));
  if (from > to) v = _mm256_srli_epi16(v, from - to);
  if (from < to) v = _mm256_slli_epi16(v, to - from);
  return _mm256_and_si256(v, mask);
}

// Returns chunk c of outputs 8 * half .. 8 * half + 7: unsigned codes, kZeroPoint too high.
template <WeightFormat kFormat>
SLUICE_INLINE __m256i load_chunk(const std::byte* group, int c, int half) {
  constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
  const auto plane = [group, half](int i) { return load_256(group + i * 64 + half * 32); };
  __m256i codes;
  if constexpr (kLayout.low_bits == 8) {
    codes = plane(c);
  } else if constexpr (kLayout.low_bits == 4) {
    codes = move_bits(plane(c % 4), c / 4 * 4, 4, 0);
  } else {
    codes = move_bits(plane(c / 4), c % 4 * 2, 2, 0);
  }
  constexpr int kHigh = kLayout.low_bits;  // the register that the high plane begins with
  if constexpr (kLayout.high_bits == 1) {
    codes = _mm256_or_si256(codes, move_bits(plane(kHigh), c, 1, kHigh));
  } else if constexpr (kLayout.high_bits == 2) {
    codes = _mm256_or_si256(codes, move_bits(plane(kHigh + c / 4), c % 4 * 2, 2, kHigh));
  }
  if constexpr (kHasCodebook<kFormat>) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kCodebook<kFormat>.v));
    codes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
  }
  return codes;
}

template <WeightFormat kFormat>
inline constexpr bool kNibbles = kLargestCode<kFormat> > 63;

// The most chunks whose products fit 16 bits together; a product pair is at most 2 * 128 * a code.
template <WeightFormat kFormat>
inline constexpr int kChain = kNibbles<kFormat>            ? 8
                              : kLargestCode<kFormat> > 31 ? 2
                              : kLargestCode<kFormat> > 15 ? 4
                                                           : 8;

// The operands of two vpmaddubsw: a chunk's codes for both halves of the outputs or, with kNibbles,
// low and high nibbles for one half, so that a dword of activations serves two products.
struct CodePair {
  __m256i first, second;
};

template <WeightFormat kFormat>
inline constexpr int kPairsPerChunk = kNibbles<kFormat> ? 2 : 1;

template <WeightFormat kFormat>
SLUICE_INLINE CodePair load_pair(const std::byte* group, int c, int pair) {
  if constexpr (kNibbles<kFormat>) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i codes = load_chunk<kFormat>(group, c, pair);
    return {_mm256_and_si256(codes, nibble), _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble)};
  } else {
    return {load_chunk<kFormat>(group, c, 0), load_chunk<kFormat>(group, c, 1)};
  }
}

// Keeps code in order across this point. Otherwise g++ starts with the loads of several chunks and
// then lacks registers for the sums.
SLUICE_INLINE void in_order(CodePair& sum) { asm volatile("" : "+x"(sum.first), "+x"(sum.second)); }

// Adds 16-bit sums of 2 k over chunks [begin, end), at most a chain: pair_at(c) times kRows rows.
template <int kRows, typename PairAt>
SLUICE_INLINE void dot_chain(
    const int8_t* x, int begin, int end, PairAt pair_at, CodePair (&sum)[kRows]) {
#pragma GCC unroll 8
  for (int c = begin; c < end; ++c) {
    const CodePair codes = pair_at(c);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256i a = broadcast_dword(x + r * kQuantGroup + 4 * c);
      const __m256i first = _mm256_maddubs_epi16(codes.first, a);
      const __m256i second = _mm256_maddubs_epi16(codes.second, a);
      sum[r].first = c == begin ? first : _mm256_add_epi16(sum[r].first, first);
      sum[r].second = c == begin ? second : _mm256_add_epi16(sum[r].second, second);
      in_order(sum[r]);
    }
  }
}

// Calls use(r, half, sum) for each of kRows rows of 32 codes each: sum = begin(r, half) + the dot
// product with the codes of pair_at(c, pair). Formats with scales for each half (kHalves) get one
// call for the first and one for the second 16 k, others one call for all 32, half 0.
template <WeightFormat kFormat, int kRows, typename PairAt, typename Begin, typename Use>
SLUICE_INLINE void dot_pairs(const int8_t* x, PairAt pair_at, Begin begin, Use use) {
  constexpr int kHalfCount = kHalves<kFormat> ? 2 : 1;
  constexpr int kChunks = 8 / kHalfCount;
  constexpr int kStep = kChain<kFormat> < kChunks ? kChain<kFormat> : kChunks;
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i sixteen = _mm256_set1_epi16(16);
#pragma GCC unroll 2
  for (int half = 0; half < kHalfCount; ++half) {
    I16 total[kRows];
#pragma GCC unroll 4
    for (int at = half * kChunks; at < (half + 1) * kChunks; at += kStep) {
#pragma GCC unroll 2
      for (int pair = 0; pair < kPairsPerChunk<kFormat>; ++pair) {
        CodePair sum[kRows];
        const auto of_pair = [&](int c) __attribute__((always_inline)) { return pair_at(c, pair); };
        dot_chain<kRows>(x, at, at + kStep, of_pair, sum);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256i first = _mm256_madd_epi16(sum[r].first, ones);
          if constexpr (kNibbles<kFormat>) {
            const __m256i high = _mm256_madd_epi16(sum[r].second, sixteen);
            (pair == 0 ? total[r].lo : total[r].hi) = _mm256_add_epi32(first, high);
          } else {
            const __m256i second = _mm256_madd_epi16(sum[r].second, ones);
            const I16 both = {first, second};
            total[r] = at == half * kChunks ? both : add(total[r], both);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kZeroPoint<kFormat> != 0) {
        total[r] = add(total[r], broadcast(begin(r, half)));
      }
      use(r, half, total[r]);
    }
  }
}

// Calls use(r, first, second) for each of kRows rows of 32 codes each: begin(r, half) plus the dot
// products of the first and second 16 k where the format has scales for each (kHalves), else that
// of all 32 twice.
template <WeightFormat kFormat, int kRows, typename Begin, typename Use>
SLUICE_INLINE void dot_int8(const std::byte* group, const int8_t* x, Begin begin, Use use) {
  const auto pair_at = [&](int c, int pair) __attribute__((always_inline)) {
    return load_pair<kFormat>(group, c, pair);
  };
  I16 first[kRows];
  const auto use_half = [&](int r, int half, I16 sum) __attribute__((always_inline)) {
    if (!kHalves<kFormat>) return use(r, sum, sum);
    if (half == 0) {
      first[r] = sum;
    } else {
      use(r, first[r], sum);
    }
  };
  dot_pairs<kFormat, kRows>(x, pair_at, begin, use_half);
}

// Returns bytes 0 and 1 of every dword (pair 0), or 2 and 3 (pair 1), zero-extended to words.
SLUICE_INLINE __m256i widen_pair(__m256i codes, int pair) {
  const __m128i bytes = _mm_set1_epi32(static_cast<int32_t>(0x80018000));
  const __m128i lane_base = _mm_setr_epi32(0, 0x00040004, 0x00080008, 0x000C000C);
  const __m256i first = _mm256_broadcastsi128_si256(_mm_or_si128(bytes, lane_base));
  const auto step = static_cast<int16_t>(2 * pair);
  return _mm256_shuffle_epi8(codes, _mm256_add_epi8(first, _mm256_set1_epi16(step)));
}

template <WeightFormat kFormat, int kRows, typename Begin>
SLUICE_INLINE void dot_int16_half(
    const std::byte* group, const int16_t* x, int half, Begin begin, __m256i (&sum)[2][kRows]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    sum[0][r] = _mm256_set1_epi32(begin(r, 0));
    if constexpr (kHalves<kFormat>) sum[1][r] = _mm256_set1_epi32(begin(r, 1));
  }
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    const __m256i codes = load_chunk<kFormat>(group, c, half);
    const __m256i words_a = widen_pair(codes, 0);
    const __m256i words_b = widen_pair(codes, 1);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const int16_t* const row = x + r * kQuantGroup + 4 * c;
      const __m256i a = _mm256_madd_epi16(words_a, broadcast_dword(row));
      const __m256i b = _mm256_madd_epi16(words_b, broadcast_dword(row + 2));
      __m256i& wide = sum[kHalves<kFormat> ? c / 4 : 0][r];
      wide = _mm256_add_epi32(wide, _mm256_add_epi32(a, b));
    }
  }
}

// dot_int8() for int16 codes.
template <WeightFormat kFormat, int kRows, typename Begin, typename Use>
SLUICE_INLINE void dot_int16(const std::byte* group, const int16_t* x, Begin begin, Use use) {
  __m256i lo[2][kRows];
  __m256i hi[2][kRows];
  dot_int16_half<kFormat, kRows>(group, x, 0, begin, lo);
  dot_int16_half<kFormat, kRows>(group, x, 1, begin, hi);
  constexpr int kSecond = kHalves<kFormat> ? 1 : 0;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    use(r, I16{lo[0][r], hi[0][r]}, I16{lo[kSecond][r], hi[kSecond][r]});
  }
}

// Writes codes, less the zero point, as [16 k pairs][16 outputs][2 k].
template <WeightFormat kFormat>
SLUICE_INLINE void widen_codes(const std::byte* group, int16_t* words) {
  const __m256i zero_point = _mm256_set1_epi16(kZeroPoint<kFormat>);
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m256i codes = load_chunk<kFormat>(group, c, half);
      int16_t* const out = words + 64 * c + 16 * half;
      store_256(out, _mm256_sub_epi16(widen_pair(codes, 0), zero_point));
      store_256(out + 32, _mm256_sub_epi16(widen_pair(codes, 1), zero_point));
    }
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
