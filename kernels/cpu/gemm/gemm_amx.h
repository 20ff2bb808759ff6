// SPDX-License-Identifier: Apache-2.0
// The tree of gemm_impl.h with AMX, for linear_amx.cpp. Exact sums come back through memory, and
// the float work is gemm_impl.h's, row by row. A matrix instruction takes signed codes, so the zero
// point is taken off when a group is unpacked, once for all rows.
#pragma once

#include "kernels/cpu/gemm/gemm_impl.h"
#include "kernels/cpu/isa/amx.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// Keeps stores before tile loads: the intrinsics do not say that tile loads read memory.
SLUICE_INLINE void stores_before_tile_loads() { asm volatile("" ::: "memory"); }

// A group's signed codes, and its scales as floats.
template <WeightFormat kFormat>
struct UnpackedGroup {
  alignas(64) std::byte codes[8 * 64];
  GroupScales scales;
};

// Whether codes are unsigned bytes with zero points per group: both then move down by 128.
template <WeightFormat kFormat>
inline constexpr bool kMovesDown = kHasZeros<kFormat>&& kLayoutOf<kFormat>.low_bits == 8;

template <WeightFormat kFormat>
SLUICE_INLINE void unpack_group(const GroupAt& at, UnpackedGroup<kFormat>& unpacked) {
  const Codes codes = load_codes<kFormat>(at.codes);
  const __m512i zero_point = _mm512_set1_epi8(static_cast<char>(kZeroPoint<kFormat>));
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    __m512i chunk = codes.chunk[c];
    if constexpr (kZeroPoint<kFormat> != 0) chunk = _mm512_sub_epi8(chunk, zero_point);
    if constexpr (kMovesDown<kFormat>) chunk = _mm512_xor_si512(chunk, _mm512_set1_epi8(-128));
    _mm512_store_si512(unpacked.codes + 64 * c, chunk);
  }
  unpacked.scales = load_scales<kFormat>(at);
  if constexpr (kMovesDown<kFormat>) {
    const I16 negated = bits_of(unpacked.scales.minimum[0]);
    unpacked.scales.minimum[0] = float_of_bits(add(negated, broadcast(128)));
  }
}

template <WeightFormat kFormat>
inline constexpr int kSumsPerGroup = kHalves<kFormat> ? 2 : 1;

template <WeightFormat kFormat>
inline constexpr int kTileK = kQuantGroup / kSumsPerGroup<kFormat>;

// Exact sums of a group, or of each of its halves.
template <WeightFormat kFormat>
struct alignas(64) GroupSums {
  int32_t v[kSumsPerGroup<kFormat>][kRowsTogether][kRowTile];
};

// Codes of one group of activations: two blocks of rows, one after the other.
struct alignas(64) RowCodes {
  std::byte v[kRowsTogether * kQuantGroup];
};

template <int kBlocks>
SLUICE_INLINE void gather_rows(const std::byte* record, int64_t block_bytes, RowCodes& rows) {
  constexpr int kBytes = kActivationRows * kQuantGroup;
#pragma GCC unroll 8
  for (int i = 0; i < kBlocks * kBytes; i += 64) {
    const std::byte* const from = record + i / kBytes * block_bytes + i % kBytes;
    _mm512_store_si512(rows.v + i, _mm512_load_si512(from));
  }
}

// Multiplies a group by 16 rows, into registers 0 and 1.
template <WeightFormat kFormat>
SLUICE_INLINE void multiply(const UnpackedGroup<kFormat>& unpacked, const RowCodes& rows) {
  _tile_loadd(6, unpacked.codes, 64);
  _tile_loadd(4, rows.v, kQuantGroup);
  _tile_zero(0);
  _tile_dpbssd(0, 4, 6);
  if constexpr (kHalves<kFormat>) {
    _tile_loadd(7, unpacked.codes + kTileK<kFormat> * kRowTile, 64);
    _tile_loadd(5, rows.v + kTileK<kFormat>, kQuantGroup);
    _tile_zero(1);
    _tile_dpbssd(1, 5, 7);
  }
}

template <WeightFormat kFormat>
SLUICE_INLINE void keep(GroupSums<kFormat>& sums) {
  _tile_stored(0, sums.v[0], 64);
  if constexpr (kHalves<kFormat>) _tile_stored(1, sums.v[1], 64);
}

// The most groups that are unpacked at a time.
inline constexpr int32_t kUnpackedGroups = 64;
static_assert((kUnpackedGroups & (kUnpackedGroups - 1)) == 0, "a mask finds places of codes");

// Codes of activations for a run of groups; the first tile lays them out on the way.
struct LaidRows {
  RowCodes codes[kMostBlockRows / kRowsTogether][kUnpackedGroups];
};

// Sums of kRowsTogether rows between two runs of groups.
struct RowsState {
  V16 acc[kRowsTogether];
  V16 pending[4][kRowsTogether];
};

// Groups [begin, end) of a tile, unpacked by the first rows that pass.
template <WeightFormat kFormat>
struct GroupRun {
  const std::byte* weight;  // group 0
  int32_t begin;
  int32_t end;
  bool is_unpacked;
  bool lay_out;       // whether this pass lays out codes of activations
  int32_t code_mask;  // group & code_mask is its codes' place
  UnpackedGroup<kFormat> unpacked[kUnpackedGroups];
};

// Adds a run of groups times kBlocks blocks of rows: `x` are their records of the run's first
// group, `out` their outputs of the tile, `codes` their laid-out codes. Returns the segment in
// progress.
template <WeightFormat kFormat, int kBlocks>
static int32_t add_run(const LinearBlock& block,
                       GroupRun<kFormat>& run,
                       const std::byte* x,
                       const float* out,
                       RowCodes* codes,
                       int32_t segment,
                       RowsState& state) {
  constexpr int kRows = kBlocks * kActivationRows;
  constexpr int64_t kBytes = activation_record_bytes(ActivationFormat::kInt8);
  const int64_t block_bytes = block.num_groups * kBytes;
  const bool is_last = run.end == block.num_groups;
  const Ahead ahead = AheadOfTiles<1>(block.tile_bytes).at(0);
  GroupSums<kFormat> sums[2];
  V16 acc[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r] = run.begin == 0 ? zero() : state.acc[r];
  // Four groups are in flight, since each of these steps takes longer than a core looks ahead:
  // laying out codes, multiplying, reading sums back, adding them.
  const int32_t count = run.end - run.begin;
  for (int32_t i = -3; i < count; ++i) {
    if (i + 3 < count) {
      if (run.lay_out) {
        gather_rows<kBlocks>(x + (i + 3) * kBytes, block_bytes, codes[(i + 3) & run.code_mask]);
      }
      if (!run.is_unpacked) {
        const int32_t group = block.first_group + run.begin + i + 3;
        unpack_group<kFormat>(group_at<kFormat>(run.weight, group), run.unpacked[i + 3]);
      }
    }
    if (i >= -1 && i + 1 < count) keep<kFormat>(sums[(i + 1) % 2]);
    if (i >= -2 && i + 2 < count) {
      stores_before_tile_loads();
      multiply<kFormat>(run.unpacked[i + 2], codes[(i + 2) & run.code_mask]);
    }
    if (i >= 0) {
      // The core must own the lines of the outputs before it writes them.
      if (is_last && i < kRows) __builtin_prefetch(out + i * block.out_stride, 1);
      const auto& sum = sums[i % 2].v;
      const GroupAt weight = group_at<kFormat>(run.weight, block.first_group + run.begin + i);
#pragma GCC unroll 2
      for (int b = 0; b < kBlocks; ++b) {
        const RecordRows<int8_t> record = record_rows<int8_t>(x + b * block_bytes + i * kBytes, 0);
#pragma GCC unroll 8
        for (int r = 0; r < kActivationRows; ++r) {
          const int at = b * kActivationRows + r;
          const I16 low{_mm512_load_si512(sum[0][at])};
          const I16 high{_mm512_load_si512(sum[kSumsPerGroup<kFormat> - 1][at])};
          acc[at] = add_sums<kFormat>(acc[at], run.unpacked[i].scales, record, r, low, high);
          if (!run.is_unpacked) prefetch_group<kFormat, kRows>(weight, ahead, at);
        }
      }
    }
    for (; segment < block.num_segments && run.begin + i + 1 == segment_end(block, segment);
         ++segment) {
      end_segment<kRowsTogether, kRows>(segment, acc, state.pending);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) acc[r] = zero();
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) state.acc[r] = acc[r];
  return segment;
}

template <WeightFormat kFormat>
static void tile_with_amx(const LinearBlock& block, int32_t tile, LaidRows& laid) {
  constexpr int64_t kBytes = activation_record_bytes(ActivationFormat::kInt8);
  const int root = __builtin_ctz(static_cast<unsigned>(block.num_segments));
  // With one run, codes stay laid out for the next tile, and sums need not be kept for a next run.
  const bool one_run = block.num_groups <= kUnpackedGroups;
  GroupRun<kFormat> run;
  run.lay_out = tile == 0 || !one_run;
  run.code_mask = one_run ? kUnpackedGroups - 1 : 1;
  run.weight = block.weight + tile * block.tile_bytes;
  RowsState states[kMostBlockRows / kRowsTogether];
  int32_t segment = 0;
  for (run.begin = 0; run.begin < block.num_groups; run.begin = run.end) {
    const int32_t left = block.num_groups - run.begin;
    run.end = run.begin + (left < kUnpackedGroups ? left : kUnpackedGroups);
    run.is_unpacked = false;
    int32_t next = segment;
    for (int32_t row = 0; row < block.num_rows; row += kRowsTogether) {
      const int32_t rows_left = block.num_rows - row;
      const int32_t count = rows_left < kRowsTogether ? rows_left : kRowsTogether;
      const std::byte* const x =
          records_of<ActivationFormat::kInt8>(block, row) + run.begin * kBytes;
      const float* const out = block.out + row * block.out_stride + tile * kRowTile;
      const int32_t part = row / kRowsTogether;
      RowCodes* const codes = laid.codes[one_run ? part : 0];
      RowsState& state = states[one_run ? 0 : part];
      next = count > kActivationRows
                 ? add_run<kFormat, 2>(block, run, x, out, codes, segment, state)
                 : add_run<kFormat, 1>(block, run, x, out, codes, segment, state);
      run.is_unpacked = true;
      if (run.end == block.num_groups) {
        write_outputs(block, tile, row, count, state.pending[root]);
      }
    }
    segment = next;
  }
}

template <WeightFormat kFormat>
static void tiles_with_amx(const LinearBlock& block) {
  _tile_loadconfig(&kTileConfig<kRowsTogether, kTileK<kFormat>>);
  LaidRows laid;
  for (int32_t tile = 0; tile < block.num_tiles; ++tile) tile_with_amx<kFormat>(block, tile, laid);
  _tile_release();
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
