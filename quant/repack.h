// SPDX-License-Identifier: Apache-2.0
// The layout that kernels read: rows interleaved by 16, K in groups of 32, codes as narrow as in
// the checkpoint. One layout serves every instruction set, row count and activation width.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/format.h"

namespace sluice {

inline constexpr int32_t kRowTile = 16;  // rows of W (outputs) side by side

// Scales of one group of 32, per row, and of a whole block of groups ("super"), per row.
enum class ScaleLayout : uint8_t {
  kNone,
  kHalf,      // scales [16] fp16
  kHalfMin,   // scales [16] fp16, minima [16] fp16
  kSub32,     // sub-scales [16] int8; super: scales [16] fp16
  kSub32Min,  // sub-scales [16] uint8, sub-minima [16] uint8; super: scales, minima [16] fp16 each
  kSub16,     // sub-scales of the first half [16] int8, of the second [16]; super: scales [16] fp16
  kSub16Min,  // kSub16's, bytes with the sub-scale in the low nibble, the sub-minimum in the high
              // one; super: scales, minima [16] fp16 each
  kExponent,  // exponents [16] uint8: the scale is 2^(e - 128)
  kChannel,   // none; the tile begins with scales [16] fp32, one for all of K
  kSub16E4M3,  // scales of the first half [16] e4m3, of the second [16]; a head like kChannel's
  kFloat32,    // scales [16] fp32; super: zero points [groups][16] uint8
  kFloat128,   // none; super: for every 4 groups scales [16] fp32, then for every 4 groups zero
               // points [16] uint8, then zero bytes up to a multiple of 64
  kBlock128,   // none; super of 4 groups: scales [16] fp32
};

// A tile (16 rows, all of K) is tile_head_bytes, then a sequence of blocks of `groups_per_block`
// groups; a block holds its groups' codes, one group after the other, then their scales, then the
// super-block's scales.
//
// Codes of a group: 8 chunks c of 4 consecutive k. Every plane is rows of dwords, [16 rows][4
// bytes], byte j for k = 4 c + j, so that a 64-byte register is 4 k of 16 outputs.
//   low plane   8 bits: one register per chunk; 4 bits: register c < 4 has chunk c in the low and
//               chunk c + 4 in the high nibbles; 2 bits: register c / 4, bits 2 (c % 4)
//   high plane  2 bits: register c / 4, bits 2 (c % 4); 1 bit: one register, bit c
// Codes are in stored form: the zero point is not taken off, and codebook entries are indices. Zero
// points per group have the form of the codes: 8-bit codes and zero points are 128 above an int8's.
// e4m3 codes: each four rows of a register have their bytes 0 and 1 side by side, then their bytes
// 2 and 3: byte j of row r is at 16 (r / 4) + 8 (j / 2) + 2 (r % 4) + j % 2, so that interleaving
// two registers of bytes gives pairs of k in the order of outputs.
//
// Float formats: [32 k][16 rows], low_bits wide.
struct PackedLayout {
  int32_t low_bits;
  int32_t high_bits;  // above the low ones
  int32_t groups_per_block;
  ScaleLayout scales;

  [[nodiscard]] constexpr int32_t code_bytes() const { return (low_bits + high_bits) * 64; }

  [[nodiscard]] constexpr int32_t scale_bytes() const {  // bytes per group
    switch (scales) {
      case ScaleLayout::kNone:
      case ScaleLayout::kChannel:
      case ScaleLayout::kFloat128:
      case ScaleLayout::kBlock128:
        return 0;
      case ScaleLayout::kSub32:
      case ScaleLayout::kExponent:
        return kRowTile;
      case ScaleLayout::kHalf:
      case ScaleLayout::kSub32Min:
      case ScaleLayout::kSub16:
      case ScaleLayout::kSub16Min:
      case ScaleLayout::kSub16E4M3:
        return 2 * kRowTile;
      case ScaleLayout::kHalfMin:
      case ScaleLayout::kFloat32:
        return 4 * kRowTile;
    }
    return 0;
  }

  [[nodiscard]] constexpr int32_t tile_head_bytes() const {
    const bool has_head = scales == ScaleLayout::kChannel || scales == ScaleLayout::kSub16E4M3;
    return has_head ? 4 * kRowTile : 0;
  }

  [[nodiscard]] constexpr int32_t super_bytes() const {
    switch (scales) {
      case ScaleLayout::kSub32:
      case ScaleLayout::kSub32Min:
      case ScaleLayout::kSub16:
      case ScaleLayout::kSub16Min:
      case ScaleLayout::kBlock128:
        return 64;
      case ScaleLayout::kFloat32:
        return groups_per_block * kRowTile;
      case ScaleLayout::kFloat128:
        return (groups_per_block / 4 * 5 * kRowTile + 63) / 64 * 64;
      default:
        return 0;
    }
  }

  [[nodiscard]] constexpr int32_t block_bytes() const {
    return groups_per_block * (code_bytes() + scale_bytes()) + super_bytes();
  }
};

// One row per WeightFormat, in its order. Blocks are whole cache lines.
inline constexpr PackedLayout kPackedLayouts[] = {
    {32, 0, 1, ScaleLayout::kNone},      // F32
    {16, 0, 1, ScaleLayout::kNone},      // F16
    {16, 0, 1, ScaleLayout::kNone},      // BF16
    {4, 0, 2, ScaleLayout::kHalf},       // Q4_0
    {4, 0, 1, ScaleLayout::kHalfMin},    // Q4_1
    {4, 1, 2, ScaleLayout::kHalf},       // Q5_0
    {4, 1, 1, ScaleLayout::kHalfMin},    // Q5_1
    {8, 0, 2, ScaleLayout::kHalf},       // Q8_0
    {2, 0, 8, ScaleLayout::kSub16Min},   // Q2_K
    {2, 1, 8, ScaleLayout::kSub16},      // Q3_K
    {4, 0, 8, ScaleLayout::kSub32Min},   // Q4_K
    {4, 1, 8, ScaleLayout::kSub32Min},   // Q5_K
    {4, 2, 8, ScaleLayout::kSub16},      // Q6_K
    {4, 0, 2, ScaleLayout::kHalf},       // IQ4_NL
    {4, 0, 8, ScaleLayout::kSub32},      // IQ4_XS
    {4, 0, 4, ScaleLayout::kExponent},   // MXFP4
    {8, 0, 1, ScaleLayout::kChannel},    // INT8
    {4, 0, 2, ScaleLayout::kSub16E4M3},  // NVFP4: 4.5 bits a weight, and a head
    {4, 0, 4, ScaleLayout::kFloat32},    // INT4 per 32: 5.25 bits
    {4, 0, 8, ScaleLayout::kFloat128},   // INT4 per 128: 4.375 bits
    {8, 0, 4, ScaleLayout::kFloat32},    // INT8 per 32: 9.25 bits
    {8, 0, 1, ScaleLayout::kChannel},    // FP8
    {8, 0, 4, ScaleLayout::kBlock128},   // FP8 per 128: 8.25 bits
};

// The layout of a format, for kernels that are templates over it.
template <WeightFormat kFormat>
inline constexpr PackedLayout kLayoutOf = kPackedLayouts[static_cast<int>(kFormat)];

// Whether the first and the second 16 k of a group have scales of their own.
template <WeightFormat kFormat>
inline constexpr bool kHalves = kLayoutOf<kFormat>.scales == ScaleLayout::kSub16 ||
                                kLayoutOf<kFormat>.scales == ScaleLayout::kSub16Min ||
                                kLayoutOf<kFormat>.scales == ScaleLayout::kSub16E4M3;

// Whether groups have zero points of their own.
template <WeightFormat kFormat>
inline constexpr bool kHasZeros = kLayoutOf<kFormat>.scales == ScaleLayout::kFloat32 ||
                                  kLayoutOf<kFormat>.scales == ScaleLayout::kFloat128;

template <WeightFormat kFormat>
inline constexpr bool kHasMin = kLayoutOf<kFormat>.scales == ScaleLayout::kHalfMin ||
                                kLayoutOf<kFormat>.scales == ScaleLayout::kSub32Min ||
                                kLayoutOf<kFormat>.scales == ScaleLayout::kSub16Min;

template <WeightFormat kFormat>
inline constexpr bool kHasCodebook =
    kFormat == WeightFormat::kIQ4_NL || kFormat == WeightFormat::kIQ4_XS ||
    kFormat == WeightFormat::kMXFP4 || kFormat == WeightFormat::kNVFP4;

// Whether codes are E2M1, whose codebook is doubled.
template <WeightFormat kFormat>
inline constexpr bool kIsE2M1 = kFormat == WeightFormat::kMXFP4 || kFormat == WeightFormat::kNVFP4;

constexpr bool is_e4m3(WeightFormat format) {
  return format == WeightFormat::kE4M3Channel || format == WeightFormat::kE4M3Block;
}

// Whether the scales at a tile's start multiply an output's whole sum and are not part of d_w.
constexpr bool scales_folded_sums(WeightFormat format) {
  return format == WeightFormat::kNVFP4 || format == WeightFormat::kE4M3Channel;
}

// A weight matrix W[n, k] in kernel layout: ceil(n / 16) tiles. Rows past n and float columns past
// k are zero bytes, which are zero weights.
struct PackedWeight {
  WeightFormat format = WeightFormat::kF32;
  int32_t n = 0;
  int32_t k = 0;
  const std::byte* data = nullptr;  // 64-byte aligned, packed_bytes(format, n, k)
  // The columns that the rows or tiles of a rank's share of a matrix hold.
  int32_t first_column = 0;
  int32_t num_columns = 0;  // 0: all of k

  [[nodiscard]] int64_t stored_columns() const { return num_columns == 0 ? k : num_columns; }
};

const PackedLayout& packed_layout(WeightFormat format);
int64_t packed_tile_bytes(WeightFormat format, int64_t k);
int64_t packed_bytes(WeightFormat format, int64_t n, int64_t k);

// Packs row tiles [tile_begin, tile_end) of `src`, n rows in the checkpoint's form; callers split
// the tiles over threads.
void pack_weight(WeightFormat format,
                 const std::byte* src,
                 int64_t n,
                 int64_t k,
                 int64_t tile_begin,
                 int64_t tile_end,
                 std::byte* dst);

// The largest k whose sums of int8 products fit 32 bits for any codes: 128 * 127 * k < 2^31.
inline constexpr int64_t kMaxChannelK = 131072;

// pack_weight() for kInt8Channel: codes [n][k], scales [n]. Columns past k weigh 0.
void pack_int8_channel(const int8_t* codes,
                       const float* scales,
                       int64_t n,
                       int64_t k,
                       int64_t tile_begin,
                       int64_t tile_end,
                       std::byte* dst);

// --- Rows ------------------------------------------------------------------------------------
//
// The form that CUDA kernels read instead of tiles where has_rows(): a matrix's rows in the
// checkpoint's form, each padded with zero bytes to a multiple of 16 (the copy engine's unit);
// then, 64-byte aligned, scales [n] fp32 for kInt8Channel and kE4M3Channel, [n][ceil(k / 128)] fp32
// for kE4M3Block. The formats are floats, kInt8Channel, kE4M3Channel and kE4M3Block.

bool has_rows(WeightFormat format);
int64_t matrix_row_stride(WeightFormat format, int64_t k);                // bytes
int64_t matrix_row_scales(WeightFormat format, int64_t k);                // fp32 scales of a row
int64_t matrix_scales_offset(WeightFormat format, int64_t n, int64_t k);  // after the rows
int64_t matrix_bytes(WeightFormat format, int64_t n, int64_t k);

// Copies rows [row_begin, row_end) of `src`, rows in the checkpoint's form, to those of `dst`.
void copy_matrix_rows(WeightFormat format,
                      const std::byte* src,
                      int64_t k,
                      int64_t row_begin,
                      int64_t row_end,
                      std::byte* dst);

// --- Shares of K -----------------------------------------------------------------------------

// How a matrix is stored.
enum class MatrixForm : uint8_t { kTiles, kRows };

struct ColumnRange {
  int64_t first = 0;
  int64_t count = 0;
};

// Returns the columns to store for columns [begin, end), whose borders are groups' or K's: tiles
// store whole blocks of groups, rows these columns, kE4M3Block whole blocks of 128.
ColumnRange columns_to_store(
    WeightFormat format, MatrixForm form, int64_t begin, int64_t end, int64_t k);

// Copies those columns of `num_rows` rows, or of the tiles that the rows fill. `src` has all of K,
// `dst` only the columns, in the same form. cut_row_scales() cuts the scales after rows.
void cut_columns(WeightFormat format,
                 MatrixForm form,
                 int64_t k,
                 const ColumnRange& columns,
                 int64_t num_rows,
                 const std::byte* src,
                 std::byte* dst);

// Copies the scales after rows: from [num_rows][matrix_row_scales(format, k)] those of the
// columns.
void cut_row_scales(WeightFormat format,
                    int64_t k,
                    const ColumnRange& columns,
                    int64_t num_rows,
                    const float* src,
                    float* dst);

}  // namespace sluice
