// SPDX-License-Identifier: Apache-2.0
// FP8 weights times e4m3 rows, for e4m3_<isa>.cpp: the tree of kernels/gemm.h. Codes become bf16 or
// floats, which is exact, weights once for all rows of a block. A few rows at a time pass over
// tiles side by side, one run of groups after the other, so that decoded weights stay in L1.
#pragma once

#include "kernels/cpu/gemm/gemm_impl.h"
#include "kernels/cpu/isa/linear_simd.h"

#if defined(SLUICE_ISA_AVX512)
#include "kernels/cpu/e4m3/e4m3_decode_avx512.h"
#elif defined(SLUICE_ISA_AVX2)
#include "kernels/cpu/e4m3/e4m3_decode_avx2.h"
#else
#include "kernels/cpu/e4m3/e4m3_decode_scalar.h"
#endif

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kPairs = kQuantGroup / 2;  // pairs of consecutive k in a group
static_assert(kActivationRows % kPairRows == 0, "a pass reads one block of activations");

// Two columns of a row: as stored for vdpbf16ps, else as floats.
template <bool kDots>
struct PairOfRow;

template <>
struct PairOfRow<true> {
  uint32_t both;  // the even column in the low half
};

template <>
struct PairOfRow<false> {
  float even;
  float odd;
};

// Two columns of 16 outputs, or of one row broadcast to 16 outputs.
template <bool kDots>
struct Pair;

template <>
struct Pair<false> {
  V16 even;
  V16 odd;
};

SLUICE_INLINE void load_pair(const I16& weights, Pair<false>& pair) {
  pair.even = float_of_bits(shift_left(weights, 16));
  pair.odd = float_of_bits(bit_and(weights, broadcast(static_cast<int32_t>(0xFFFF0000))));
}

SLUICE_INLINE void load_pair(const PairOfRow<false>& x, Pair<false>& pair) {
  pair.even = broadcast(x.even);
  pair.odd = broadcast(x.odd);
}

SLUICE_INLINE V16 add_pair(V16 sum, const Pair<false>& w, const Pair<false>& x) {
  return fma(w.even, x.even, fma(w.odd, x.odd, sum));
}

SLUICE_INLINE void load_pairs(const uint8_t* codes, PairOfRow<false>* pairs) {
  for (int i = 0; i < kQuantGroup; i += 16) {
    store(&pairs[i / 2].even, mul(load_e4m3(codes + i), broadcast(256.0F)));
  }
}

#if defined(__AVX512BF16__)
template <>
struct Pair<true> {
  __m512i v;
};

SLUICE_INLINE void load_pair(const I16& weights, Pair<true>& pair) { pair.v = weights.v; }

SLUICE_INLINE void load_pair(const PairOfRow<true>& x, Pair<true>& pair) {
  pair.v = _mm512_set1_epi32(static_cast<int32_t>(x.both));
}

SLUICE_INLINE V16 add_pair(V16 sum, const Pair<true>& w, const Pair<true>& x) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)w.v, (__m512bh)x.v)};
}

SLUICE_INLINE void load_pairs(const uint8_t* codes, PairOfRow<true>* pairs) {
  // Eight codes go to the low half of each quarter, so that the first pairs are all of them.
  const __m512i places = _mm512_setr_epi64(0, 0, 1, 0, 2, 0, 3, 0);
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const TwoPairs two = decode_e4m3(_mm512_permutexvar_epi64(places, _mm512_castsi256_si512(bytes)));
  _mm512_storeu_si512(pairs, two.first.v);
}
#endif

// Whether weights and rows have scales per 128 of K, else one a row.
template <WeightFormat kFormat>
inline constexpr bool kInGroups = kLayoutOf<kFormat>.columns_per_scale() != 0;

// Rows of activations from `row` on, all of one activation block.
struct PairRows {
  const uint8_t* codes;
  int64_t row_bytes;
  const float* scales;  // kE4M3Group: 8 for each 128 columns
};

template <WeightFormat kFormat>
SLUICE_INLINE PairRows pair_rows(const LinearBlock& block, int64_t row) {
  const int64_t quads = (block.num_groups + 3) / 4;
  const int64_t head = kInGroups<kFormat> ? (quads * 32 + 63) / 64 * 64 : kTokenHeadBytes;
  const int64_t row_bytes = quads * 4 * kQuantGroup;
  const std::byte* const codes = static_cast<const std::byte*>(block.x) +
                                 row / kActivationRows * (head + kActivationRows * row_bytes);
  const int64_t lane = row % kActivationRows;
  return {bytes_at(codes) + lane * row_bytes,
          row_bytes,
          reinterpret_cast<const float*>(codes - head) + lane};
}

// Groups [begin, end) of kTiles tiles, decoded by the first pass over them.
template <bool kDots, int kTiles>
struct PairRun {
  static constexpr int kMostGroups = kPairBytes / (kTiles * kPairs * int{sizeof(Pair<kDots>)});

  const std::byte* weight;  // the first tile
  int32_t begin;
  int32_t end;
  bool is_unpacked;
  Pair<kDots> unpacked[kMostGroups][kTiles][kPairs];
};

// Sums between two runs; tile t and row r are at [t * rows + r].
template <int kTiles>
struct PairSums {
  V16 acc[kTiles * kPairRows];
  V16 pending[4][kTiles * kPairRows];
};

// Decodes chunk c of a tile's group.
template <bool kDots>
SLUICE_INLINE void decode_chunk(const GroupAt& at, int c, Pair<kDots> (&pairs)[2]) {
  const TwoPairs two = decode_e4m3(load_codes_64(at.codes + 64 * c));
  load_pair(two.first, pairs[0]);
  load_pair(two.second, pairs[1]);
}

// Decodes the tiles' groups to memory, for this pass and later ones.
template <WeightFormat kFormat, bool kDots, int kTiles>
SLUICE_INLINE void unpack_pairs(const LinearBlock& block,
                                PairRun<kDots, kTiles>& run,
                                int32_t group) {
  for (int t = 0; t < kTiles; ++t) {
    const std::byte* const tile = run.weight + t * block.tile_bytes;
    const GroupAt at = group_at<kFormat>(tile, block.first_group + group);
    Pair<kDots>* const unpacked = run.unpacked[group - run.begin][t];
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      Pair<kDots> pairs[2];
      decode_chunk(at, c, pairs);
      unpacked[2 * c] = pairs[0];
      unpacked[2 * c + 1] = pairs[1];
    }
  }
}

// Adds pair i of a group to p of every tile and row. `x`: the first row's pair; rows have `stride`
// pairs.
template <bool kDots, int kTiles, int kRows>
SLUICE_INLINE void add_pairs(const Pair<kDots> (&w)[kTiles],
                             const PairOfRow<kDots>* x,
                             int64_t stride,
                             V16 (&p)[kTiles * kRows]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    Pair<kDots> of_row;
    load_pair(x[r * stride], of_row);
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) {
      p[t * kRows + r] = add_pair(p[t * kRows + r], w[t], of_row);
    }
  }
}

// Adds all pairs of a group, decoding them on the way, for a run with a single pass.
template <WeightFormat kFormat, bool kDots, int kTiles, int kRows>
SLUICE_INLINE void add_group_once(const LinearBlock& block,
                                  const std::byte* weight,
                                  int32_t group,
                                  const Ahead& ahead,
                                  const PairOfRow<kDots>* x,
                                  int64_t stride,
                                  V16 (&p)[kTiles * kRows]) {
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    Pair<kDots> first[kTiles];
    Pair<kDots> second[kTiles];
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) {
      const GroupAt at =
          group_at<kFormat>(weight + t * block.tile_bytes, block.first_group + group);
      prefetch_line(at.codes + 64 * c, ahead);
      Pair<kDots> pairs[2];
      decode_chunk(at, c, pairs);
      first[t] = pairs[0];
      second[t] = pairs[1];
    }
    add_pairs<kDots, kTiles, kRows>(first, x + 2 * c, stride, p);
    add_pairs<kDots, kTiles, kRows>(second, x + 2 * c + 1, stride, p);
  }
}

// Decodes the run's groups of a pass's rows.
template <bool kDots, int kTiles, int kRows, int kStride>
SLUICE_INLINE void load_rows(const PairRows& rows,
                             const PairRun<kDots, kTiles>& run,
                             PairOfRow<kDots> (&x)[kRows][kStride]) {
  for (int r = 0; r < kRows; ++r) {
    const uint8_t* const codes = rows.codes + r * rows.row_bytes;
    for (int32_t g = run.begin; g < run.end; ++g) {
      load_pairs(codes + g * kQuantGroup, x[r] + (g - run.begin) * kPairs);
    }
  }
}

// A pass: one run of groups times kRows rows from `row` on; kOnce if the run has no other pass.
// Returns the segment in progress.
template <WeightFormat kFormat, bool kDots, bool kOnce, int kTiles, int kRows>
static int32_t add_pair_run(const LinearBlock& block,
                            PairRun<kDots, kTiles>& run,
                            int32_t row,
                            int32_t segment,
                            PairSums<kTiles>& sums) {
  constexpr int kSums = kTiles * kRows;
  const PairRows rows = pair_rows<kFormat>(block, row);
  constexpr int kStride = PairRun<kDots, kTiles>::kMostGroups * kPairs;
  PairOfRow<kDots> x[kRows][kStride];
  load_rows(rows, run, x);
  const AheadOfTiles<kTiles> tiles(block.tile_bytes);
  V16 acc[kSums];
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) acc[i] = run.begin == 0 ? zero() : sums.acc[i];
  int32_t group = run.begin;
  do {  // a share of a short K may have segments and no groups
    const int32_t of_segment = segment_end(block, segment);
    const int32_t end = of_segment < run.end ? of_segment : run.end;
    for (; group < end; ++group) {
      const int32_t at = group - run.begin;
      V16 p[kSums];
#pragma GCC unroll 12
      for (int i = 0; i < kSums; ++i) p[i] = zero();
      const PairOfRow<kDots>* const of_group = x[0] + at * kPairs;
      if constexpr (kOnce) {
        const std::byte* const codes =
            group_at<kFormat>(run.weight, block.first_group + group).codes;
        add_group_once<kFormat, kDots, kTiles, kRows>(
            block, run.weight, group, tiles.at(codes - run.weight), of_group, kStride, p);
      } else {
        if (!run.is_unpacked) unpack_pairs<kFormat>(block, run, group);
#pragma GCC unroll 16
        for (int i = 0; i < kPairs; ++i) {
          Pair<kDots> w[kTiles];
#pragma GCC unroll 4
          for (int t = 0; t < kTiles; ++t) w[t] = run.unpacked[at][t][i];
          add_pairs<kDots, kTiles, kRows>(w, of_group + i, kStride, p);
        }
      }
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t) {
        V16 scale = zero();
        if constexpr (kInGroups<kFormat>) {
          const std::byte* const tile = run.weight + t * block.tile_bytes;
          const GroupAt weights = group_at<kFormat>(tile, block.first_group + group);
          scale = load(reinterpret_cast<const float*>(weights.super));
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          V16& sum = acc[t * kRows + r];
          if constexpr (kInGroups<kFormat>) {
            const float of_row = rows.scales[group / 4 * kActivationRows + r];
            sum = fma(p[t * kRows + r], mul(scale, broadcast(of_row)), sum);
          } else {
            sum = add(sum, p[t * kRows + r]);
          }
        }
      }
      bring_lines<kTiles, kRows>(block.lines);
    }
    for (; segment < block.num_segments && segment_end(block, segment) == group; ++segment) {
      end_segment<kTiles * kPairRows, kSums>(segment, acc, sums.pending);
#pragma GCC unroll 12
      for (int i = 0; i < kSums; ++i) acc[i] = zero();
    }
  } while (group < run.end);
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sums.acc[i] = acc[i];
  return segment;
}

// Writes a pass's outputs from its complete sums.
template <WeightFormat kFormat, int kTiles>
static void write_pair_sums(
    const LinearBlock& block, int32_t tile, int32_t row, int32_t num_rows, PairSums<kTiles>& sums) {
  const int root = __builtin_ctz(static_cast<unsigned>(block.num_segments));
  V16* const y = sums.pending[root];
  const bool scaled = !kInGroups<kFormat> && block.num_segments == kSegments;
  const float* const scales = pair_rows<kFormat>(block, row).scales;
  for (int t = 0; t < kTiles; ++t) {
    V16* const of_tile = y + t * num_rows;
    for (int r = 0; scaled && r < num_rows; ++r) of_tile[r] = mul(of_tile[r], broadcast(scales[r]));
    write_outputs(block, tile + t, row, num_rows, of_tile);
  }
}

// Computes kTiles tiles from `tile` on, for every row.
template <WeightFormat kFormat, bool kDots, int kTiles>
static void pair_tiles(const LinearBlock& block, int32_t tile) {
  using PassFn =
      int32_t (*)(const LinearBlock&, PairRun<kDots, kTiles>&, int32_t, int32_t, PairSums<kTiles>&);
  static constexpr auto kByRows = []<int... kLess>(std::integer_sequence<int, kLess...>) {
    using Passes = std::array<PassFn, kPairRows>;
    return std::array<Passes, 2>{Passes{add_pair_run<kFormat, kDots, false, kTiles, kLess + 1>...},
                                 Passes{add_pair_run<kFormat, kDots, true, kTiles, kLess + 1>...}};
  }
  (std::make_integer_sequence<int, kPairRows>());
  const size_t once = block.num_rows <= kPairRows ? 1 : 0;
  PairRun<kDots, kTiles> run;
  run.weight = block.weight + tile * block.tile_bytes;
  PairSums<kTiles> sums[kMostBlockRows / kPairRows];
  int32_t segment = 0;
  run.end = 0;
  do {
    run.begin = run.end;
    const int32_t left = block.num_groups - run.begin;
    run.end = run.begin + (left < run.kMostGroups ? left : run.kMostGroups);
    run.is_unpacked = false;
    int32_t segment_after = segment;
    for (int32_t row = 0; row < block.num_rows; row += kPairRows) {
      const int32_t rows_left = block.num_rows - row;
      const int32_t rows = rows_left < kPairRows ? rows_left : kPairRows;
      PairSums<kTiles>& own = sums[row / kPairRows];
      segment_after = kByRows[once][static_cast<size_t>(rows - 1)](block, run, row, segment, own);
      run.is_unpacked = true;
      if (run.end == block.num_groups) write_pair_sums<kFormat>(block, tile, row, rows, own);
    }
    segment = segment_after;
  } while (run.end < block.num_groups);
}

template <WeightFormat kFormat, bool kDots>
static void e4m3_format(const LinearBlock& block) {
  int32_t tile = 0;
  for (; tile + kPairTiles <= block.num_tiles; tile += kPairTiles) {
    pair_tiles<kFormat, kDots, kPairTiles>(block, tile);
  }
  for (; tile < block.num_tiles; ++tile) pair_tiles<kFormat, kDots, 1>(block, tile);
}

template <bool kDots>
static void e4m3_tiles(const LinearBlock& block) {
  with_format(block.format, [&]<WeightFormat kFormat>() {
    if constexpr (kLayoutOf<kFormat>.is_e4m3()) e4m3_format<kFormat, kDots>(block);
  });
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
