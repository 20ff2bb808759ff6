// SPDX-License-Identifier: Apache-2.0
// The tree of gemm_impl.h for many rows. They pass kUnpackedRows at a time over kUnpackedAtOnce
// tiles, whose codes are unpacked to bytes once for all rows, or again by each pass
// (is_unpacked_fast).
#pragma once

#include "kernels/cpu/gemm/gemm_impl.h"
#include "kernels/cpu/isa/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int kUnpackedRows = 4;
static_assert(kActivationRows % kUnpackedRows == 0, "a pass reads one block of activations");

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
inline constexpr int32_t kMostUnpackedGroups = 54 / kUnpackedAtOnce;

inline constexpr int kUnpackedSums = kUnpackedAtOnce * kUnpackedRows;
static_assert(kUnpackedTiles % kUnpackedAtOnce == 0, "pieces of work are cut by kUnpackedTiles");

// Groups [begin, end) of the tiles, unpacked by the first pass.
template <WeightFormat kFormat>
struct UnpackedRun {
  const std::byte* weight;  // the first tile
  int32_t begin;
  int32_t end;
  UnpackedBytes<kFormat> groups[kMostUnpackedGroups][kUnpackedAtOnce];
};

template <WeightFormat kFormat>
SLUICE_INLINE void unpack_bytes(const GroupAt& at, UnpackedBytes<kFormat>& unpacked) {
  constexpr int kSums = UnpackedBytes<kFormat>::kSums;
  unpack_codes<kFormat>(at.codes, unpacked);
  const GroupScales scales = load_scales<kFormat>(at);
#pragma GCC unroll 2
  for (int h = 0; h < kSums; ++h) {
    unpacked.scales[h] = scales.scale[h];
    if constexpr (kHasSecond<kFormat>) unpacked.scales[kSums + h] = scales.minimum[h];
  }
}

// The lines of the next run that a pass brings to L2. Each group of each pass brings equally many
// of them, one pass after the other through the tiles. The loop over the groups has no time for
// more than a pointer.
class LinesOfRun {
 public:
  // `first`: the run's first byte in the first of kUnpackedAtOnce tiles, of which it takes
  // run_bytes.
  LinesOfRun(const std::byte* first,
             int64_t tile_bytes,
             int64_t run_bytes,
             int32_t num_groups,
             int32_t pass,
             int32_t passes)
      : tile_bytes_(tile_bytes) {
    const auto in_tile = static_cast<int32_t>((run_bytes + 63) / 64);
    const int32_t turns = num_groups * passes;
    per_group_ = (kUnpackedAtOnce * in_tile + turns - 1) / turns;
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

// Sums of kUnpackedRows rows between two runs, [t * kUnpackedRows + r].
struct UnpackedSums {
  V16 acc[kUnpackedSums];
  V16 pending[4][kUnpackedSums];
};

// A pass's treatment of weights: it unpacks them for later passes, reads what was unpacked, or
// unpacks for itself.
enum class Pass { kUnpacksForAll, kReads, kUnpacks };

// Runs a pass: a run of groups times kUnpackedRows rows from `row` on. Returns the segment in
// progress.
template <WeightFormat kFormat, Pass kPass>
static int32_t add_unpacked_run(const LinearBlock& block,
                                UnpackedRun<kFormat>& run,
                                int64_t row,
                                int32_t segment,
                                LinesOfRun next,
                                UnpackedSums& sums) {
  constexpr int64_t kBytes = activation_record_bytes(ActivationFormat::kInt8);
  const std::byte* record = records_of<ActivationFormat::kInt8>(block, row) + run.begin * kBytes;
  const int first = first_of<kUnpackedRows>(row);
  const auto packed = [&](int32_t group, int t) __attribute__((always_inline)) {
    return group_at<kFormat>(run.weight + t * block.tile_bytes, block.first_group + group);
  };
  const auto unpack = [&](int32_t group) __attribute__((always_inline)) {
#pragma GCC unroll 3
    for (int t = 0; t < kUnpackedAtOnce; ++t) {
      unpack_bytes<kFormat>(packed(group, t), run.groups[group - run.begin][t]);
    }
  };
  V16 acc[kUnpackedSums];
#pragma GCC unroll 12
  for (int i = 0; i < kUnpackedSums; ++i) acc[i] = run.begin == 0 ? zero() : sums.acc[i];
  if constexpr (kPass == Pass::kUnpacksForAll) unpack(run.begin);
  for (int32_t group = run.begin; group < run.end;) {
    const int32_t of_segment = segment_end(block, segment);
    const int32_t end = of_segment < run.end ? of_segment : run.end;
    for (; group < end; ++group, record += kBytes) {
      // Unpacks one group ahead, so that no load waits for a fresh store.
      if constexpr (kPass == Pass::kUnpacksForAll) {
        if (group + 1 < run.end) unpack(group + 1);
      }
      const RecordRows<int8_t> x = record_rows<int8_t>(record, first);
      if constexpr (kPass == Pass::kUnpacks) {
        PackedBytes<kFormat> tiles[kUnpackedAtOnce];
#pragma GCC unroll 3
        for (int t = 0; t < kUnpackedAtOnce; ++t) tiles[t].at = packed(group, t);
        add_unpacked_group<kFormat>(tiles, x, acc);
      } else {
        add_unpacked_group<kFormat>(run.groups[group - run.begin], x, acc);
      }
      next.bring();
      bring_lines<kUnpackedAtOnce, kUnpackedRows>(block.lines);
    }
    for (; segment < block.num_segments && segment_end(block, segment) == group; ++segment) {
      end_segment<kUnpackedSums, kUnpackedSums>(segment, acc, sums.pending);
#pragma GCC unroll 12
      for (int i = 0; i < kUnpackedSums; ++i) acc[i] = float_of_bits(fresh_zeros());
    }
  }
  if (run.end < block.num_groups) {
#pragma GCC unroll 12
    for (int i = 0; i < kUnpackedSums; ++i) sums.acc[i] = acc[i];
  }
  return segment;
}

// Computes kUnpackedAtOnce tiles from `tile` on, for every row. The last pass may compute rows that
// do not exist, of the last block of activations.
template <WeightFormat kFormat, bool kUnpacks>
static void unpacked_tiles(const LinearBlock& block, int32_t tile) {
  const int root = __builtin_ctz(static_cast<unsigned>(block.num_segments));
  const int32_t passes = (block.num_rows + kUnpackedRows - 1) / kUnpackedRows;
  UnpackedRun<kFormat> run;
  run.weight = block.weight + tile * block.tile_bytes;
  // Runs have about equal length: each brings as many groups of the next to L2 as it has itself.
  const int32_t runs = (block.num_groups + kMostUnpackedGroups - 1) / kMostUnpackedGroups;
  const int32_t run_groups = (block.num_groups + runs - 1) / runs;
  UnpackedSums sums[kMostBlockRows / kUnpackedRows];  // one run needs one of them
  int32_t segment = 0;
  for (run.begin = 0; run.begin < block.num_groups; run.begin = run.end) {
    const int32_t left = block.num_groups - run.begin;
    run.end = run.begin + (left < run_groups ? left : run_groups);
    const bool is_last = run.end == block.num_groups;
    const std::byte* const after =
        is_last ? run.weight + kUnpackedAtOnce * block.tile_bytes : run.weight;
    const std::byte* const next_group =
        group_at<kFormat>(after, block.first_group + (is_last ? 0 : run.end)).codes;
    int32_t segment_after = segment;
    for (int32_t pass = 0; pass < passes; ++pass) {
      const int64_t row = pass * kUnpackedRows;
      UnpackedSums& own = sums[runs == 1 ? 0 : pass];
      const int32_t num_groups = run.end - run.begin;
      const LinesOfRun next(next_group,
                            block.tile_bytes,
                            int64_t{num_groups} * kGroupBytes<kFormat>,
                            num_groups,
                            pass,
                            passes);
      if (is_last) {
        for (int t = 0; t < kUnpackedAtOnce; ++t) own_outputs<kUnpackedRows>(block, tile + t, row);
      }
      if constexpr (kUnpacks) {
        segment_after =
            add_unpacked_run<kFormat, Pass::kUnpacks>(block, run, row, segment, next, own);
      } else {
        segment_after = pass == 0 ? add_unpacked_run<kFormat, Pass::kUnpacksForAll>(
                                        block, run, row, segment, next, own)
                                  : add_unpacked_run<kFormat, Pass::kReads>(
                                        block, run, row, segment, next, own);
      }
      if (!is_last) continue;
      const int32_t rows_left = block.num_rows - pass * kUnpackedRows;
      for (int t = 0; t < kUnpackedAtOnce; ++t) {
        write_outputs(block,
                      tile + t,
                      row,
                      rows_left < kUnpackedRows ? rows_left : kUnpackedRows,
                      own.pending[root] + t * kUnpackedRows);
      }
    }
    segment = segment_after;
  }
}

LinearBlock linear_unpacked(const LinearBlock& block) {
  int32_t tile = 0;
  with_block_format(block.format, [&]<WeightFormat kFormat>() {
    for (; tile + kUnpackedAtOnce <= block.num_tiles; tile += kUnpackedAtOnce) {
      if constexpr (kPassesUnpack && is_unpacked_fast(kFormat)) {
        if (block.unpacks_in_passes) {
          unpacked_tiles<kFormat, true>(block, tile);
          continue;
        }
      }
      unpacked_tiles<kFormat, false>(block, tile);
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
