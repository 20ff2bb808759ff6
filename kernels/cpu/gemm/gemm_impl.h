// SPDX-License-Identifier: Apache-2.0
// Row tiles times rows of activations for linear_<isa>.cpp: the tree of kernels/gemm.h over the
// exact dot products of gemm_<isa>.h. A weight tile (16 outputs, all of K) stays in L1 while the
// rows of activations pass in blocks; inside a block each group's codes are unpacked once for all
// rows.
//
// Integer activations are compiled per format. Float ones with integer weights, and the scalar set,
// widen a group into a buffer first, so that one body serves all formats.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cpu/gemm/weights_impl.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/isa/vec16.h"
#if defined(SLUICE_ISA_SCALAR)
#include "kernels/cpu/gemm/unpack_any_impl.h"
#endif

namespace sluice::kernels::cpu::SLUICE_ISA {

// Prefetches past the end of the weights are harmless, and across tiles the next tile's start is
// wanted. A core has at most some 16 L1 lines outstanding, too few for memory's latency, so lines
// from memory are brought to L2 first. Tiles that are walked side by side share those. The
// hardware's prefetchers alone reach half of this with few rows, and leave memory idle while a
// group is multiplied with many (Xeon and Zen 5; bench/cpu.md).
inline constexpr int32_t kPrefetchToL2Bytes = 16384;
inline constexpr int32_t kPrefetchToL1Bytes = 4096;
inline constexpr int32_t kMostPrefetchToL1Bytes = 2048;  // for one tile

#if defined(SLUICE_ISA_AVX512)
inline constexpr bool kSideBySide = true;  // tiles, with few rows
#else
inline constexpr bool kSideBySide = false;
#endif

// Distances in bytes from the current weights to those to prefetch; 0: none.
struct Ahead {
  int64_t to_l2;
  int64_t to_l1;
};

// With one stream the hardware fetches from L2 in time, and one request a line beats two.
inline constexpr Ahead kAheadOfOneStream = {.to_l2 = 8192, .to_l1 = 0};

// Distances for kTiles tiles side by side: a tile's end is followed by the tile kTiles further on.
template <int kTiles>
class AheadOfTiles {
 public:
  explicit AheadOfTiles(int64_t tile_bytes)
      : to_l2_(kPrefetchToL2Bytes / kTiles, tile_bytes),
        to_l1_(std::min(kPrefetchToL1Bytes / kTiles, kMostPrefetchToL1Bytes), tile_bytes) {}

  // `offset`: the current bytes' offset in their tile.
  [[nodiscard]] SLUICE_INLINE Ahead at(int64_t offset) const {
    return {to_l2_.at(offset), to_l1_.at(offset)};
  }

 private:
  class Distance {
   public:
    // A loop, since `bytes` spans few tiles and a division would take longer.
    Distance(int64_t bytes, int64_t tile_bytes) : in_tile_(bytes), end_(tile_bytes - bytes) {
      for (; kTiles > 1 && end_ <= 0; end_ += tile_bytes) in_tile_ += (kTiles - 1) * tile_bytes;
      behind_ = in_tile_ + (kTiles - 1) * tile_bytes;
    }

    [[nodiscard]] SLUICE_INLINE int64_t at(int64_t offset) const {
      return kTiles == 1 || offset < end_ ? in_tile_ : behind_;
    }

   private:
    int64_t in_tile_;
    int64_t behind_;
    int64_t end_;
  };

  Distance to_l2_;
  Distance to_l1_;
};

// Prefetches what is `ahead` of `line`, a line of the current weights.
SLUICE_INLINE void prefetch_line(const std::byte* line, const Ahead& ahead) {
  __builtin_prefetch(line + ahead.to_l2, 0, 2);
  if (ahead.to_l1 > 0) __builtin_prefetch(line + ahead.to_l1, 0, 3);
}

// Prefetches part `part` of kParts of a group's lines. Parts go between the rows' work on a group:
// a core that waits for a free outstanding line does not go on with later work.
template <WeightFormat kFormat, int kParts>
SLUICE_INLINE void prefetch_group(const GroupAt& at, const Ahead& ahead, int part) {
  constexpr int kCodeLines = kLayoutOf<kFormat>.code_bytes() / 64;
  constexpr int kLines = kCodeLines + (kLayoutOf<kFormat>.scale_bytes() > 0 ? 1 : 0);
#pragma GCC unroll 9
  for (int i = part * kLines / kParts; i < (part + 1) * kLines / kParts; ++i) {
    prefetch_line(i < kCodeLines ? at.codes + i * 64 : at.scales, ahead);
  }
}

// The average distance from one group of a tile to the next, over a block.
template <WeightFormat kFormat>
inline constexpr int kGroupBytes =
    kLayoutOf<kFormat>.block_bytes() / kLayoutOf<kFormat>.groups_per_block;

// The part of a group's activation record that kRows rows from `first` on use.
template <typename Code>
struct RecordRows {
  const Code* codes;
  const float* scales;
  const float* sums;
  const int32_t* code_sums;
  const int32_t* half_sums;
};

template <typename Code>
SLUICE_INLINE RecordRows<Code> record_rows(const std::byte* record, int first) {
  const std::byte* const tail = record + kActivationRows * kQuantGroup * sizeof(Code);
  const float* const scales = reinterpret_cast<const float*>(tail) + first;
  const float* const sums = scales + kActivationRows;
  const auto* const code_sums = reinterpret_cast<const int32_t*>(sums + kActivationRows);
  return {reinterpret_cast<const Code*>(record) + first * kQuantGroup,
          scales,
          sums,
          code_sums,
          code_sums + kActivationRows};
}

// acc of a group with one scale, or of one half: acc = fma(float(isum), d_w * s_a, acc).
SLUICE_INLINE V16 add_product(V16 acc, I16 isum, V16 weight_scale, float scale) {
  return fma(to_float(isum), mul(weight_scale, broadcast(scale)), acc);
}

// t_a of one half of a group: float(sum of its codes) * s_a.
template <typename Code>
SLUICE_INLINE float half_term(const RecordRows<Code>& x, int r, int half) {
  const int32_t first = x.half_sums[r];
  return static_cast<float>(half == 0 ? first : x.code_sums[r] - first) * x.scales[r];
}

#if !defined(SLUICE_ISA_SCALAR)
// Adds to acc what the exact sum of a row's codes times those of a group, or of its half, gives.
template <WeightFormat kFormat, typename Code>
SLUICE_INLINE V16 add_sum(V16 acc,
                          I16 isum,
                          V16 scale,
                          [[maybe_unused]] V16 minimum,
                          const RecordRows<Code>& x,
                          int r,
                          [[maybe_unused]] int half) {
  if constexpr (kHasZeros<kFormat>) {
    const I16 negated = bits_of(minimum);
    if constexpr (sizeof(Code) == 1) {
      isum = take_zeros(isum, negated, x.code_sums[r]);
    } else {
      isum = add(isum, mul_low(negated, broadcast(x.code_sums[r])));
    }
  }
  acc = add_product(acc, isum, scale, x.scales[r]);
  if constexpr (kHasMin<kFormat>) {
    const float term = kHalves<kFormat> ? half_term(x, r, half) : x.sums[r];
    acc = fma(minimum, broadcast(term), acc);
  }
  return acc;
}

// add_sum() for a whole group: low and high are the sums of its halves in formats with scales for
// each (kHalves), else low is that of the group.
template <WeightFormat kFormat, typename Code>
SLUICE_INLINE V16
add_sums(V16 acc, const GroupScales& w, const RecordRows<Code>& x, int r, I16 low, I16 high) {
  acc = add_sum<kFormat>(acc, low, w.scale[0], w.minimum[0], x, r, 0);
  if constexpr (kHalves<kFormat>) {
    acc = add_sum<kFormat>(acc, high, w.scale[1], w.minimum[1], x, r, 1);
  }
  return acc;
}
#endif

// Brings the attention's lines that are due after a group of kTiles tiles times kRows rows.
template <int kTiles, int kRows>
SLUICE_INLINE void bring_lines(LinesAhead* ahead) {
  constexpr int kLines = kTiles * kRowTile * kRows * kQuantGroup / kProductsPerLine;
  if (kLines == 0 || ahead == nullptr) return;
  for (int i = 0; i < kLines && ahead->left > 0; ++i, --ahead->left) {
    __builtin_prefetch(ahead->runs[ahead->run] + int64_t{ahead->line} * 64, 0, 2);
    if (++ahead->line < ahead->run_lines) continue;
    ahead->line = 0;
    ++ahead->run;
  }
}

#if !defined(SLUICE_ISA_SCALAR)
// The value an exact sum of unsigned codes begins with, so that the zero point is off at its end.
// It may wrap around for rows that do not exist; their sums are never read.
template <WeightFormat kFormat, typename Code>
SLUICE_INLINE int32_t first_of_sum(const RecordRows<Code>& x, int r, int half) {
  if constexpr (kZeroPoint<kFormat> == 0) return 0;
  auto codes = static_cast<uint32_t>(x.code_sums[r]);
  if constexpr (kHalves<kFormat>) {
    const auto first = static_cast<uint32_t>(x.half_sums[r]);
    codes = half == 0 ? first : codes - first;
  }
  return static_cast<int32_t>(0U - (codes << kZeroPointShift<kFormat>));
}

// acc[r] += one group of codes times codes, by the tree. `record`: the group's activations of 8
// rows, of which the kRows from `first` on are used.
template <WeightFormat kFormat, typename Code, int kRows>
SLUICE_INLINE void add_group(
    const GroupAt& at, const std::byte* record, int first, const Ahead& ahead, V16* acc) {
  const GroupScales w = load_scales<kFormat>(at);
  const RecordRows<Code> x = record_rows<Code>(record, first);
  const auto begin = [&](int r, int half) __attribute__((always_inline)) {
    return first_of_sum<kFormat>(x, r, half);
  };
  const auto use = [&](int r, I16 low, I16 high) __attribute__((always_inline)) {
    acc[r] = add_sums<kFormat>(acc[r], w, x, r, low, high);
    prefetch_group<kFormat, kRows>(at, ahead, r);
  };
  if constexpr (sizeof(Code) == 1) {
    dot_int8<kFormat, kRows>(at.codes, x.codes, begin, use);
  } else {
    dot_int16<kFormat, kRows>(at.codes, x.codes, begin, use);
  }
}
#else

// add_group() over a widened group.
template <typename Code, int kRows>
SLUICE_INLINE void add_wide_group(const WideGroup& w,
                                  const std::byte* record,
                                  int first,
                                  V16* acc) {
  const RecordRows<Code> x = record_rows<Code>(record, first);
  const auto use = [&](int r, I16 low, I16 high) __attribute__((always_inline)) {
    if (!w.halves) {
      acc[r] = add_product(acc[r], add(low, high), w.scales.scale[0], x.scales[r]);
      if (w.has_min) acc[r] = fma(w.scales.minimum[0], broadcast(x.sums[r]), acc[r]);
      return;
    }
    acc[r] = add_product(acc[r], low, w.scales.scale[0], x.scales[r]);
    if (w.has_min) acc[r] = fma(w.scales.minimum[0], broadcast(half_term(x, r, 0)), acc[r]);
    acc[r] = add_product(acc[r], high, w.scales.scale[1], x.scales[r]);
    if (w.has_min) acc[r] = fma(w.scales.minimum[1], broadcast(half_term(x, r, 1)), acc[r]);
  };
  dot_words<kRows>(w.words, x.codes, use);
}
#endif

// Asks for the lines of the outputs early: the core must own them before it writes, and they arrive
// while the sums are made.
template <int kRows>
SLUICE_INLINE void own_outputs(const LinearBlock& block, int32_t tile, int64_t row) {
  const float* const out = block.out + row * block.out_stride + tile * kRowTile;
  for (int r = 0; r < kRows; ++r) __builtin_prefetch(out + r * block.out_stride, 1);
}

// Writes the outputs of a tile for num_rows rows from `row` on.
SLUICE_INLINE void write_outputs(
    const LinearBlock& block, int32_t tile, int64_t row, int32_t num_rows, const V16* y) {
  const int32_t column = tile * kRowTile;
  const int32_t left = block.num_columns - column;
  const int32_t count = left < kRowTile ? left : kRowTile;
  V16 bias = zero();
  if (block.bias != nullptr) bias = load_partial(block.bias + column, count);
  V16 scale = zero();
  if (block.scales_rows) {
    scale = load(reinterpret_cast<const float*>(block.weight + tile * block.tile_bytes));
  }
  for (int32_t r = 0; r < num_rows; ++r) {
    float* const out = block.out + (row + r) * block.out_stride + column;
    V16 value = y[r];
    if (block.scales_rows) value = mul(value, scale);
    if (block.bias != nullptr) value = add(value, bias);
    if (block.add) value = add(load_partial(out, count), value);
    store_partial(out, value, count);
  }
}

// Returns one past the last group of a segment, both counted from the block's first.
SLUICE_INLINE int32_t segment_end(const LinearBlock& block, int32_t segment) {
  const int64_t next = block.first_segment + segment + 1;
  return static_cast<int32_t>(next * block.weight_groups / kSegments) - block.groups_before;
}

// Folds segments like a binary counter: pending[l] holds the sum of a finished subtree of 2^l
// segments, the last one the whole after all have ended. acc is used up.
template <int kStride, int kSums>
SLUICE_INLINE void end_segment(int32_t segment, V16* acc, V16 (*pending)[kStride]) {
  int level = 0;
  for (; (segment >> level & 1) != 0; ++level) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) acc[i] = add(pending[level][i], acc[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) pending[level][i] = acc[i];
}

// Folds kTiles row tiles times kRows rows: calls add_group(group, acc) for every group in order;
// acc of tile t and row r is at [t * kRows + r].
template <int kTiles, int kRows, typename AddGroup>
SLUICE_INLINE void fold_segments(const LinearBlock& block,
                                 int32_t tile,
                                 int64_t row,
                                 AddGroup add_group) {
  constexpr int kSums = kTiles * kRows;
  V16 pending[4][kSums];
  int32_t group = 0;
  for (int32_t segment = 0; segment < block.num_segments; ++segment) {
    const int32_t end = segment_end(block, segment);
    V16 acc[kSums];
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) acc[i] = zero();
    for (; group < end; ++group) add_group(group, acc);
    end_segment<kSums, kSums>(segment, acc, pending);
  }
  const int root = __builtin_ctz(static_cast<unsigned>(block.num_segments));
  for (int t = 0; t < kTiles; ++t) {
    write_outputs(block, tile + t, row, kRows, pending[root] + t * kRows);
  }
}

// Returns the record of the first group of the activation block that holds row `row`.
template <ActivationFormat kActivation>
SLUICE_INLINE const std::byte* records_of(const LinearBlock& block, int64_t row) {
  constexpr int64_t kBytes = activation_record_bytes(kActivation);
  return static_cast<const std::byte*>(block.x) + row / kActivationRows * block.num_groups * kBytes;
}

template <int kRows>
SLUICE_INLINE int first_of(int64_t row) {
  return kRows < kActivationRows ? static_cast<int>(row % kActivationRows) : 0;
}

#if defined(SLUICE_ISA_SCALAR)
template <ActivationFormat kActivation, typename Code>
struct WideRows {
  template <int kTiles, int kRows>
  static void run(const LinearBlock& block, int32_t tile, int64_t row) {
    constexpr int64_t kBytes = activation_record_bytes(kActivation);
    const std::byte* const weight = block.weight + tile * block.tile_bytes;
    const std::byte* const x = records_of<kActivation>(block, row);
    const int first = first_of<kRows>(row);
    const WidenFn widen = widen_of(block.format);
    WideGroup wide;
    const auto add = [&](int32_t group, V16 * acc) __attribute__((always_inline)) {
      for (int t = 0; t < kTiles; ++t) {
        widen(weight + t * block.tile_bytes, block.first_group + group, wide);
        add_wide_group<Code, kRows>(wide, x + group * kBytes, first, acc + t * kRows);
      }
    };
    fold_segments<kTiles, kRows>(block, tile, row, add);
  }
};
#else
template <WeightFormat kFormat, ActivationFormat kActivation, typename Code>
struct IntegerRows {
  // With so few rows memory is the limit, and unless one stream of reads reaches it
  // (LinearBlock::one_stream), tiles are walked side by side. With more, the sums of two tiles no
  // longer fit the registers.
  static constexpr int32_t kRowsOfFourTiles = 2;
  static constexpr int32_t kRowsOfTwoTiles = 4;

  template <int kTiles, int kRows>
  static void run(const LinearBlock& block, int32_t tile, int64_t row) {
    constexpr int64_t kBytes = activation_record_bytes(kActivation);
    const std::byte* const weight = block.weight + tile * block.tile_bytes;
    const std::byte* const x = records_of<kActivation>(block, row);
    const int first = first_of<kRows>(row);
    const AheadOfTiles<kTiles> tiles(block.tile_bytes);
    constexpr bool kIsStream = kSideBySide && kTiles == 1 && kRows <= kRowsOfTwoTiles;
    if constexpr (kTiles == 1 && kRows == kRowsAtOnce) own_outputs<kRows>(block, tile, row);
    const auto add = [&](int32_t group, V16 * acc) __attribute__((always_inline)) {
      const int64_t offset = group_at<kFormat>(weight, block.first_group + group).codes - weight;
      const Ahead ahead = kIsStream ? kAheadOfOneStream : tiles.at(offset);
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t) {
        const GroupAt at =
            group_at<kFormat>(weight + t * block.tile_bytes, block.first_group + group);
        add_group<kFormat, Code, kRows>(at, x + group * kBytes, first, ahead, acc + t * kRows);
      }
      bring_lines<kTiles, kRows>(block.lines);
    };
    fold_segments<kTiles, kRows>(block, tile, row, add);
  }
};
#endif

using RowsFn = void (*)(const LinearBlock& block, int32_t tile, int64_t row);

// Computes kTiles tiles for every row, kAtOnce rows at a time.
template <typename Rows, int kTiles, int kAtOnce>
static void every_row(const LinearBlock& block, int32_t tile) {
  static constexpr auto kByRows = []<int... kLess>(std::integer_sequence<int, kLess...>) {
    return std::array<RowsFn, kAtOnce>{Rows::template run<kTiles, kLess + 1>...};
  }
  (std::make_integer_sequence<int, kAtOnce>());
  for (int64_t row = 0; row < block.num_rows; row += kAtOnce) {
    const int64_t left = block.num_rows - row;
    kByRows[static_cast<size_t>((left < kAtOnce ? left : kAtOnce) - 1)](block, tile, row);
  }
}

// Four streams of shorter tiles gain nothing.
inline constexpr int64_t kTileBytesOfFour = 12288;

template <typename Rows>
static void linear_tiles(const LinearBlock& block) {
  int32_t tile = 0;
  if constexpr (kSideBySide) {
    // Floats stay in pairs of tiles, whose sums need not wait for each other.
    const bool is_stream = Rows::kRowsOfFourTiles > 0 && block.one_stream;
    if constexpr (Rows::kRowsOfFourTiles > 0) {
      const bool four = !is_stream && block.num_rows <= Rows::kRowsOfFourTiles &&
                        block.tile_bytes >= kTileBytesOfFour;
      for (; four && tile + 4 <= block.num_tiles; tile += 4) {
        every_row<Rows, 4, Rows::kRowsOfFourTiles>(block, tile);
      }
    }
    if (!is_stream && block.num_rows <= Rows::kRowsOfTwoTiles) {
      for (; tile + 2 <= block.num_tiles; tile += 2) {
        every_row<Rows, 2, std::min(kRowsAtOnce, Rows::kRowsOfTwoTiles)>(block, tile);
      }
    }
  }
  for (; tile < block.num_tiles; ++tile) every_row<Rows, 1, kRowsAtOnce>(block, tile);
}

// Integer weights with int8 or int16 activations.
template <ActivationFormat kActivation, typename Code>
static void linear_integer(const LinearBlock& block) {
#if defined(SLUICE_ISA_SCALAR)
  return linear_tiles<WideRows<kActivation, Code>>(block);
#else
  with_block_format(block.format, [&]<WeightFormat kFormat>() {
    linear_tiles<IntegerRows<kFormat, kActivation, Code>>(block);
  });
#endif
}

#if defined(SLUICE_ISA_AVX512)
// linear_integer() for the formats of one family.
template <FormatFamily kFamily, ActivationFormat kActivation, typename Code>
static void linear_family(const LinearBlock& block) {
  with_format_of<kFamily>(block.format, [&]<WeightFormat kFormat>() {
    linear_tiles<IntegerRows<kFormat, kActivation, Code>>(block);
  });
}
#endif

}  // namespace sluice::kernels::cpu::SLUICE_ISA
