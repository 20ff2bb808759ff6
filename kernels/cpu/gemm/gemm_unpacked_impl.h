// SPDX-License-Identifier: Apache-2.0
// The tree of gemm_impl.h for many rows. They pass kOpenRows at a time over kOpenAtOnce tiles,
// whose codes are unpacked to bytes once for all rows, or again by each pass (is_unpacked_fast).
#pragma once

#include "kernels/cpu/gemm/gemm_impl.h"
#include "kernels/cpu/isa/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kOpenRows = 4;
static_assert(kActivationRows % kOpenRows == 0, "a pass reads one block of activations");

// A group of a tile in packed form.
template <WeightFormat kFormat>
struct PackedBytes {
  GroupAt at;
};

}  // namespace sluice::kernels::cpu::SLUICE_ISA

#if defined(SLUICE_ISA_AVX512)
#include "kernels/cpu/gemm/gemm_unpacked_avx512.h"
#else
#include "kernels/cpu/gemm/gemm_unpacked_avx2.h"
#endif

namespace sluice::kernels::cpu::SLUICE_ISA {

// The most groups unpacked at a time: at most 41 KB for all tiles, in L1 while the rows pass.
inline constexpr int32_t kMostOpenGroups = 54 / kOpenAtOnce;

inline constexpr int kOpenSums = kOpenAtOnce * kOpenRows;
static_assert(kOpenTiles % kOpenAtOnce == 0, "pieces of work are cut by kOpenTiles");

// Groups [begin, end) of the tiles, unpacked by the first pass.
template <WeightFormat kFormat>
struct OpenRun {
  const std::byte* weight;  // the first tile
  int32_t begin;
  int32_t end;
  OpenBytes<kFormat> groups[kMostOpenGroups][kOpenAtOnce];
};

template <WeightFormat kFormat>
SLUICE_INLINE void open_bytes(const GroupAt& at, OpenBytes<kFormat>& open) {
  constexpr int kSums = OpenBytes<kFormat>::kSums;
  open_codes<kFormat>(at.codes, open);
  const GroupScales scales = load_scales<kFormat>(at);
#pragma GCC unroll 2
  for (int h = 0; h < kSums; ++h) {
    open.scales[h] = scales.scale[h];
    if constexpr (kHasSecond<kFormat>) open.scales[kSums + h] = scales.minimum[h];
  }
}

// The lines of the next run that a pass brings to L2. Each group of each pass brings equally many
// of them, one pass after the other through the tiles. The loop over the groups has no time for
// more than a pointer.
class LinesOfRun {
 public:
  // `first`: the run's first byte in the first of kOpenAtOnce tiles, of which it takes run_bytes.
  LinesOfRun(const std::byte* first,
             int64_t tile_bytes,
             int64_t run_bytes,
             int32_t num_groups,
             int32_t pass,
             int32_t passes)
      : tile_bytes_(tile_bytes) {
    const auto in_tile = static_cast<int32_t>((run_bytes + 63) / 64);
    const int32_t turns = num_groups * passes;
    per_group_ = (kOpenAtOnce * in_tile + turns - 1) / turns;
    const int32_t begin = pass * num_groups * per_group_;
    const std::byte* const tile = first + begin / in_tile * tile_bytes;
    line_ = tile + begin % in_tile * 64;
    end_ = tile + in_tile * 64;
    gap_ = tile_bytes - in_tile * 64;
  }

  // Brings one group's lines.
  SLUICE_INLINE void bring() {
    for (int32_t i = per_group_; i > 0; --i, line_ += 64) __builtin_prefetch(line_, 0, 2);
    if (line_ < end_) return;
    line_ += gap_;
    end_ += tile_bytes_;
  }

 private:
  const std::byte* line_;
  const std::byte* end_;  // the run's end in the tile
  int64_t gap_;           // from end_ to the run's first byte in the next tile
  int64_t tile_bytes_;
  int32_t per_group_;
};

// Sums of kOpenRows rows between two runs, [t * kOpenRows + r].
struct OpenSums {
  V16 acc[kOpenSums];
  V16 pending[4][kOpenSums];
};

// A pass's treatment of weights: it unpacks them for later passes, reads what was unpacked, or
// unpacks for itself.
enum class Pass { kOpens, kOpened, kUnpacks };

// Runs a pass: a run of groups times kOpenRows rows from `row` on. Returns the segment in progress.
template <WeightFormat kFormat, Pass kPass>
static int32_t add_open_run(const LinearBlock& block,
                            OpenRun<kFormat>& run,
                            int64_t row,
                            int32_t segment,
                            LinesOfRun next,
                            OpenSums& sums) {
  constexpr int64_t kBytes = activation_record_bytes(ActivationFormat::kInt8);
  const std::byte* record = records_of<ActivationFormat::kInt8>(block, row) + run.begin * kBytes;
  const int first = first_of<kOpenRows>(row);
  const auto packed = [&](int32_t group, int t) __attribute__((always_inline)) {
    return group_at<kFormat>(run.weight + t * block.tile_bytes, block.first_group + group);
  };
  const auto open = [&](int32_t group) __attribute__((always_inline)) {
#pragma GCC unroll 3
    for (int t = 0; t < kOpenAtOnce; ++t) {
      open_bytes<kFormat>(packed(group, t), run.groups[group - run.begin][t]);
    }
  };
  V16 acc[kOpenSums];
#pragma GCC unroll 12
  for (int i = 0; i < kOpenSums; ++i) acc[i] = run.begin == 0 ? zero() : sums.acc[i];
  if constexpr (kPass == Pass::kOpens) open(run.begin);
  for (int32_t group = run.begin; group < run.end;) {
    const int32_t of_segment = segment_end(block, segment);
    const int32_t end = of_segment < run.end ? of_segment : run.end;
    for (; group < end; ++group, record += kBytes) {
      // Opens one group ahead, so that no load waits for a fresh store.
      if constexpr (kPass == Pass::kOpens) {
        if (group + 1 < run.end) open(group + 1);
      }
      const RecordRows<int8_t> x = record_rows<int8_t>(record, first);
      if constexpr (kPass == Pass::kUnpacks) {
        PackedBytes<kFormat> tiles[kOpenAtOnce];
#pragma GCC unroll 3
        for (int t = 0; t < kOpenAtOnce; ++t) tiles[t].at = packed(group, t);
        add_open_group<kFormat>(tiles, x, acc);
      } else {
        add_open_group<kFormat>(run.groups[group - run.begin], x, acc);
      }
      next.bring();
      bring_lines<kOpenAtOnce, kOpenRows>(block.lines);
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

// Computes kOpenAtOnce tiles from `tile` on, for every row. The last pass may compute rows that do
// not exist, of the last block of activations.
template <WeightFormat kFormat, bool kUnpacks>
static void open_tiles(const LinearBlock& block, int32_t tile) {
  const int root = __builtin_ctz(static_cast<unsigned>(block.num_segments));
  const int32_t passes = (block.num_rows + kOpenRows - 1) / kOpenRows;
  OpenRun<kFormat> run;
  run.weight = block.weight + tile * block.tile_bytes;
  // Runs have about equal length: each brings as many groups of the next to L2 as it has itself.
  const int32_t runs = (block.num_groups + kMostOpenGroups - 1) / kMostOpenGroups;
  const int32_t run_groups = (block.num_groups + runs - 1) / runs;
  OpenSums sums[kMostBlockRows / kOpenRows];  // one run needs one of them
  int32_t segment = 0;
  for (run.begin = 0; run.begin < block.num_groups; run.begin = run.end) {
    const int32_t left = block.num_groups - run.begin;
    run.end = run.begin + (left < run_groups ? left : run_groups);
    const bool is_last = run.end == block.num_groups;
    const std::byte* const after =
        is_last ? run.weight + kOpenAtOnce * block.tile_bytes : run.weight;
    const std::byte* const next_group =
        group_at<kFormat>(after, block.first_group + (is_last ? 0 : run.end)).codes;
    int32_t segment_after = segment;
    for (int32_t pass = 0; pass < passes; ++pass) {
      const int64_t row = pass * kOpenRows;
      OpenSums& own = sums[runs == 1 ? 0 : pass];
      const int32_t num_groups = run.end - run.begin;
      const LinesOfRun next(next_group,
                            block.tile_bytes,
                            int64_t{num_groups} * kGroupBytes<kFormat>,
                            num_groups,
                            pass,
                            passes);
      if (is_last) {
        for (int t = 0; t < kOpenAtOnce; ++t) own_outputs<kOpenRows>(block, tile + t, row);
      }
      if constexpr (kUnpacks) {
        segment_after = add_open_run<kFormat, Pass::kUnpacks>(block, run, row, segment, next, own);
      } else {
        segment_after =
            pass == 0 ? add_open_run<kFormat, Pass::kOpens>(block, run, row, segment, next, own)
                      : add_open_run<kFormat, Pass::kOpened>(block, run, row, segment, next, own);
      }
      if (!is_last) continue;
      const int32_t rows_left = block.num_rows - pass * kOpenRows;
      for (int t = 0; t < kOpenAtOnce; ++t) {
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

LinearBlock linear_open(const LinearBlock& block) {
  int32_t tile = 0;
  with_block_format(block.format, [&]<WeightFormat kFormat>() {
    for (; tile + kOpenAtOnce <= block.num_tiles; tile += kOpenAtOnce) {
      if constexpr (kPassesUnpack && is_unpacked_fast(kFormat)) {
        if (block.unpacks_in_passes) {
          open_tiles<kFormat, true>(block, tile);
          continue;
        }
      }
      open_tiles<kFormat, false>(block, tile);
    }
  });
  LinearBlock rest = block;
  rest.num_tiles -= tile;
  rest.num_columns -= tile * kRowTile;
  rest.weight += tile * block.tile_bytes;
  rest.out += tile * kRowTile;
  if (rest.bias != nullptr) rest.bias += tile * kRowTile;
  return rest;
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
