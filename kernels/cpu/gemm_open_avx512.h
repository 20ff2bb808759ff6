// SPDX-License-Identifier: Apache-2.0
// The tree of gemm_impl.h for many rows, with VNNI. Codes of three tiles are unpacked to bytes once
// for all rows that pass. Four rows at a time have all their sums in registers, 12 exact ones and
// 12 of the tree, so that a load of weights serves four dot products and one of activations three:
// the pipes that multiply have little but the tree to do.
#pragma once

#include "kernels/cpu/gemm_impl.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kOpenRows = 4;
inline constexpr int kOpenSums = kOpenTiles * kOpenRows;
static_assert(kActivationRows % kOpenRows == 0, "a pass reads one block of activations");

// Groups that are open at a time; they stay in L2.
inline constexpr int32_t kMostOpenGroups = 64;

// A group of a tile as the dot products read it.
template <WeightFormat kFormat>
struct OpenBytes {
  static constexpr int kSums = kHalves<kFormat> ? 2 : 1;

  __m512i codes[8];  // as Codes
  V16 scales[kHasMin<kFormat> ? 2 * kSums : kSums];  // then the minima
};

// Groups [begin, end) of the tiles, which the first pass opens on the way.
template <WeightFormat kFormat>
struct OpenRun {
  const std::byte* weight;  // of the first tile
  int32_t begin;
  int32_t end;
  OpenBytes<kFormat> groups[kMostOpenGroups][kOpenTiles];
};

// Sums of kOpenRows rows between two runs, [t * kOpenRows + r].
struct OpenSums {
  V16 acc[kOpenSums];
  V16 pending[4][kOpenSums];
};

template <WeightFormat kFormat>
SLUICE_INLINE void open_bytes(const GroupAt& at, OpenBytes<kFormat>& open) {
  const Codes codes = load_codes<kFormat>(at.codes);
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) open.codes[c] = codes.chunk[c];
  const GroupScales scales = load_scales<kFormat>(at);
#pragma GCC unroll 2
  for (int h = 0; h < OpenBytes<kFormat>::kSums; ++h) {
    open.scales[h] = scales.scale[h];
    if constexpr (kHasMin<kFormat>) open.scales[OpenBytes<kFormat>::kSums + h] = scales.minimum[h];
  }
}

// Zeros made anew, which takes none of the pipes, where a copy of a register with zeros may.
// Without volatile the compiler makes them once and copies.
SLUICE_INLINE I16 fresh_zeros() {
  __m512i zeros;
  asm volatile("vpxord %0, %0, %0" : "=v"(zeros));
  return {zeros};
}

// acc[t * kOpenRows + r] += a group, as the tree says.
template <WeightFormat kFormat>
SLUICE_INLINE void add_open_group(const OpenBytes<kFormat>* open,
                                  const RecordRows<int8_t>& x,
                                  V16* acc) {
  constexpr int kSums = OpenBytes<kFormat>::kSums;
  constexpr int kChunks = 8 / kSums;
#pragma GCC unroll 2
  for (int h = 0; h < kSums; ++h) {
    I16 sum[kOpenTiles][kOpenRows];
#pragma GCC unroll 4
    for (int r = 0; r < kOpenRows; ++r) {
#pragma GCC unroll 3
      for (int t = 0; t < kOpenTiles; ++t) {
        sum[t][r] = kZeroPoint<kFormat> == 0 ? fresh_zeros()
                                             : broadcast(first_of_sum<kFormat>(x, r, h));
      }
    }
#pragma GCC unroll 8
    for (int c = h * kChunks; c < (h + 1) * kChunks; ++c) {
#pragma GCC unroll 4
      for (int r = 0; r < kOpenRows; ++r) {
        const __m512i a = broadcast_dword(x.codes + r * kQuantGroup + 4 * c);
#pragma GCC unroll 3
        for (int t = 0; t < kOpenTiles; ++t) {
          sum[t][r].v = _mm512_dpbusd_epi32(sum[t][r].v, open[t].codes[c], a);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kOpenRows; ++r) {
#pragma GCC unroll 3
      for (int t = 0; t < kOpenTiles; ++t) {
        V16& y = acc[t * kOpenRows + r];
        const V16 minimum = kHasMin<kFormat> ? open[t].scales[kSums + h] : zero();
        y = add_sum<kFormat>(y, sum[t][r], open[t].scales[h], minimum, x, r, h);
      }
    }
  }
}

// From one group of a tile to the next, on average over a block, and the lines that one touches.
template <WeightFormat kFormat>
inline constexpr int kGroupBytes = kLayoutOf<kFormat>.block_bytes() /
                                   kLayoutOf<kFormat>.groups_per_block;
template <WeightFormat kFormat>
inline constexpr int kGroupLines = (kGroupBytes<kFormat> + 63) / 64;

// What a pass over a run brings to L2 of the run after: a share of the lines of each group.
template <WeightFormat kFormat>
struct NextRun {
  const std::byte* first_group;
  int32_t num_lines;
  int64_t lines[kGroupLines<kFormat> * kOpenTiles];  // from a group's first byte on

  SLUICE_INLINE NextRun(const std::byte* first, int64_t tile_bytes, int32_t pass, int32_t passes)
      : first_group(first), num_lines(0) {
    constexpr int kLines = kGroupLines<kFormat>;
    const int32_t end = (pass + 1) * kLines * kOpenTiles / passes;
    for (int32_t i = pass * kLines * kOpenTiles / passes; i < end; ++i) {
      lines[num_lines++] = i / kLines * tile_bytes + i % kLines * 64;
    }
  }

  SLUICE_INLINE void prefetch(int32_t group) const {
    const std::byte* const at = first_group + group * kGroupBytes<kFormat>;
    for (int32_t i = 0; i < num_lines; ++i) __builtin_prefetch(at + lines[i], 0, 2);
  }
};

// A pass: a run of groups times kOpenRows rows from `row` on. Returns the segment that is under
// way.
template <WeightFormat kFormat, bool kOpens>
static int32_t add_open_run(const LinearBlock& block,
                            OpenRun<kFormat>& run,
                            int64_t row,
                            int32_t segment,
                            const NextRun<kFormat>& next,
                            OpenSums& sums) {
  constexpr int64_t kBytes = activation_record_bytes(ActivationFormat::kInt8);
  const std::byte* record = records_of<ActivationFormat::kInt8>(block, row) + run.begin * kBytes;
  const int first = first_of<kOpenRows>(row);
  const auto open = [&](int32_t group) __attribute__((always_inline)) {
#pragma GCC unroll 3
    for (int t = 0; t < kOpenTiles; ++t) {
      const std::byte* const tile = run.weight + t * block.tile_bytes;
      open_bytes<kFormat>(group_at<kFormat>(tile, block.first_group + group),
                          run.groups[group - run.begin][t]);
    }
  };
  V16 acc[kOpenSums];
#pragma GCC unroll 12
  for (int i = 0; i < kOpenSums; ++i) acc[i] = run.begin == 0 ? zero() : sums.acc[i];
  if constexpr (kOpens) open(run.begin);
  for (int32_t group = run.begin; group < run.end;) {
    const int32_t of_segment = segment_end(block, segment);
    const int32_t end = of_segment < run.end ? of_segment : run.end;
    for (; group < end; ++group, record += kBytes) {
      // One ahead, so that nothing waits for what was just stored.
      if constexpr (kOpens) {
        if (group + 1 < run.end) open(group + 1);
      }
      add_open_group<kFormat>(
          run.groups[group - run.begin], record_rows<int8_t>(record, first), acc);
      next.prefetch(group - run.begin);
    }
    for (; segment < block.num_segments && segment_end(block, segment) == group; ++segment) {
      end_segment<kOpenSums, kOpenSums>(segment, acc, sums.pending);
#pragma GCC unroll 12
      for (int i = 0; i < kOpenSums; ++i) acc[i] = float_of_bits(fresh_zeros());
    }
  }
  if (run.end < block.num_groups) {
#pragma GCC unroll 12
    for (int i = 0; i < kOpenSums; ++i) sums.acc[i] = acc[i];
  }
  return segment;
}

// kOpenTiles tiles from `tile` on, for every row. The last pass computes rows that may not exist,
// of the last block of activations.
template <WeightFormat kFormat>
static void open_tiles(const LinearBlock& block, int32_t tile) {
  const int root = __builtin_ctz(static_cast<unsigned>(block.num_segments));
  const int32_t passes = (block.num_rows + kOpenRows - 1) / kOpenRows;
  OpenRun<kFormat> run;
  run.weight = block.weight + tile * block.tile_bytes;
  // Runs of about the same length: each brings as many groups of the next to L2 as it has itself.
  const int32_t runs = (block.num_groups + kMostOpenGroups - 1) / kMostOpenGroups;
  const int32_t run_groups = (block.num_groups + runs - 1) / runs;
  OpenSums sums[kMostBlockRows / kOpenRows];  // one run needs one of them
  int32_t segment = 0;
  for (run.begin = 0; run.begin < block.num_groups; run.begin = run.end) {
    const int32_t left = block.num_groups - run.begin;
    run.end = run.begin + (left < run_groups ? left : run_groups);
    const bool is_last = run.end == block.num_groups;
    const std::byte* const after =
        is_last ? run.weight + kOpenTiles * block.tile_bytes : run.weight;
    const std::byte* const next_group =
        group_at<kFormat>(after, block.first_group + (is_last ? 0 : run.end)).codes;
    int32_t segment_after = segment;
    for (int32_t pass = 0; pass < passes; ++pass) {
      const int64_t row = pass * kOpenRows;
      OpenSums& own = sums[runs == 1 ? 0 : pass];
      const NextRun<kFormat> next(next_group, block.tile_bytes, pass, passes);
      if (is_last) {
        for (int t = 0; t < kOpenTiles; ++t) own_outputs<kOpenRows>(block, tile + t, row);
      }
      segment_after =
          pass == 0 ? add_open_run<kFormat, true>(block, run, row, segment, next, own)
                    : add_open_run<kFormat, false>(block, run, row, segment, next, own);
      if (!is_last) continue;
      const int32_t rows_left = block.num_rows - pass * kOpenRows;
      for (int t = 0; t < kOpenTiles; ++t) {
        write_outputs(block,
                      tile + t,
                      row,
                      rows_left < kOpenRows ? rows_left : kOpenRows,
                      own.pending[root] + t * kOpenRows);
      }
    }
    segment = segment_after;
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
