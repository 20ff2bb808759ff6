// SPDX-License-Identifier: Apache-2.0
// The weight formats, one row each, and the layout that kernels read them in: rows interleaved by
// 16, K in groups of 32, codes as narrow as in the checkpoint. One layout serves every instruction
// set, row count and activation width; the traits in it are what kernels ask.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

inline constexpr int32_t kQuantGroup = 32;  // activation quantization group along absolute k
inline constexpr int32_t kRowTile = 16;     // rows of W (outputs) side by side

// What a stored code means before its scale: the element format, as OCP's MX formats call it.
enum class ElementFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kInt,   // unsigned; the format's zero point or the group's is taken off
  kIQ4,   // 4 bits, an entry of kIq4Codebook
  kE2M1,  // 4 bits, an entry of kE2M1Codebook
  kE4M3,
};

inline constexpr int8_t kIq4Codebook[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// E2M1 of MXFP4 and NVFP4, doubled so that all values are integers; scales are halved in return.
inline constexpr int8_t kE2M1Codebook[16] = {
    0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

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

inline constexpr uint32_t kNoGgmlType = UINT32_MAX;

// One row per format. The enumerators, FormatInfo (format.h), PackedLayout and the instances of
// kernels on CPU and GPU are made of these rows, in this order.
//   name, type   the spelling of GGUF tools, and the type id in GGUF tensor infos
//   k, bytes     of a block: weights along K and bytes; without blocks: of a byte of codes alone
//   element      an ElementFormat
//   zero         the zero point of kInt, 0 or a power of two; 0 where groups have their own
//   at           offset of the block's consecutive fp16 scales and minima, if it has any
//   low, high    bits of a code in PackedLayout's planes
//   n            groups of 32 in a block of PackedLayout
//   scales       a ScaleLayout
// Those without a type in GGUF come last. They have no blocks: codes and scales are apart in a
// checkpoint, and plain_rows.h is the form between it and kernels. Block decoders refuse them.
// clang-format off
//    format          name            type         k, bytes  element zero at low, high, n  scales
#define SLUICE_WEIGHT_FORMATS(ROW) \
  ROW(kF32,          "F32",          0,           1,   4,   kF32,  0,   0,   32, 0, 1, kNone)      \
  ROW(kF16,          "F16",          1,           1,   2,   kF16,  0,   0,   16, 0, 1, kNone)      \
  ROW(kBF16,         "BF16",         30,          1,   2,   kBF16, 0,   0,   16, 0, 1, kNone)      \
  ROW(kQ4_0,         "Q4_0",         2,           32,  18,  kInt,  8,   0,   4,  0, 2, kHalf)      \
  ROW(kQ4_1,         "Q4_1",         3,           32,  20,  kInt,  0,   0,   4,  0, 1, kHalfMin)   \
  ROW(kQ5_0,         "Q5_0",         6,           32,  22,  kInt,  16,  0,   4,  1, 2, kHalf)      \
  ROW(kQ5_1,         "Q5_1",         7,           32,  24,  kInt,  0,   0,   4,  1, 1, kHalfMin)   \
  ROW(kQ8_0,         "Q8_0",         8,           32,  34,  kInt,  128, 0,   8,  0, 2, kHalf)      \
  ROW(kQ2_K,         "Q2_K",         10,          256, 84,  kInt,  0,   80,  2,  0, 8, kSub16Min)  \
  ROW(kQ3_K,         "Q3_K",         11,          256, 110, kInt,  4,   108, 2,  1, 8, kSub16)     \
  ROW(kQ4_K,         "Q4_K",         12,          256, 144, kInt,  0,   0,   4,  0, 8, kSub32Min)  \
  ROW(kQ5_K,         "Q5_K",         13,          256, 176, kInt,  0,   0,   4,  1, 8, kSub32Min)  \
  ROW(kQ6_K,         "Q6_K",         14,          256, 210, kInt,  32,  208, 4,  2, 8, kSub16)     \
  ROW(kIQ4_NL,       "IQ4_NL",       20,          32,  18,  kIQ4,  0,   0,   4,  0, 2, kHalf)      \
  ROW(kIQ4_XS,       "IQ4_XS",       23,          256, 136, kIQ4,  0,   0,   4,  0, 8, kSub32)     \
  ROW(kMXFP4,        "MXFP4",        39,          32,  17,  kE2M1, 0,   0,   4,  0, 4, kExponent)  \
  ROW(kInt8Channel,  "INT8",         kNoGgmlType, 1,   1,   kInt,  128, 0,   8,  0, 1, kChannel)   \
  ROW(kNVFP4,        "NVFP4",        kNoGgmlType, 2,   1,   kE2M1, 0,   0,   4,  0, 2, kSub16E4M3) \
  ROW(kInt4Group32,  "INT4 per 32",  kNoGgmlType, 2,   1,   kInt,  0,   0,   4,  0, 4, kFloat32)   \
  ROW(kInt4Group128, "INT4 per 128", kNoGgmlType, 2,   1,   kInt,  0,   0,   4,  0, 8, kFloat128)  \
  ROW(kInt8Group32,  "INT8 per 32",  kNoGgmlType, 1,   1,   kInt,  0,   0,   8,  0, 4, kFloat32)   \
  ROW(kE4M3Channel,  "FP8",          kNoGgmlType, 1,   1,   kE4M3, 0,   0,   8,  0, 1, kChannel)   \
  ROW(kE4M3Block,    "FP8 per 128",  kNoGgmlType, 1,   1,   kE4M3, 0,   0,   8,  0, 4, kBlock128)
// clang-format on

enum class WeightFormat : uint8_t {
#define SLUICE_ENUMERATOR(format, ...) format,
  SLUICE_WEIGHT_FORMATS(SLUICE_ENUMERATOR)
#undef SLUICE_ENUMERATOR
};

#define SLUICE_ONE(...) +1
inline constexpr int kNumWeightFormats = SLUICE_WEIGHT_FORMATS(SLUICE_ONE);
#undef SLUICE_ONE

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
  ElementFormat element;
  int32_t zero_point;

  [[nodiscard]] constexpr int32_t code_bits() const { return low_bits + high_bits; }

  [[nodiscard]] constexpr int32_t code_bytes() const { return code_bits() * 64; }

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

  [[nodiscard]] constexpr bool is_float() const {
    return element == ElementFormat::kF32 || element == ElementFormat::kF16 ||
           element == ElementFormat::kBF16;
  }

  [[nodiscard]] constexpr bool is_e4m3() const { return element == ElementFormat::kE4M3; }

  // Whether kernels multiply codes as integers, those of codebooks too.
  [[nodiscard]] constexpr bool is_integer() const { return !is_float() && !is_e4m3(); }

  // Returns the [16] values of codes; null: they have none.
  [[nodiscard]] constexpr const int8_t* codebook() const {
    return element == ElementFormat::kIQ4    ? kIq4Codebook
           : element == ElementFormat::kE2M1 ? kE2M1Codebook
                                             : nullptr;
  }

  // Returns what a stored code of an integer format means; a group's own zero point is to be taken
  // off it.
  [[nodiscard]] constexpr int32_t value_of(int32_t code) const {
    return codebook() != nullptr ? codebook()[code] : code - zero_point;
  }

  // Whether the first and the second 16 k of a group have scales of their own.
  [[nodiscard]] constexpr bool has_halves() const {
    return scales == ScaleLayout::kSub16 || scales == ScaleLayout::kSub16Min ||
           scales == ScaleLayout::kSub16E4M3;
  }

  // Whether groups have zero points of their own.
  [[nodiscard]] constexpr bool has_zeros() const {
    return scales == ScaleLayout::kFloat32 || scales == ScaleLayout::kFloat128;
  }

  [[nodiscard]] constexpr bool has_min() const {
    return scales == ScaleLayout::kHalfMin || scales == ScaleLayout::kSub32Min ||
           scales == ScaleLayout::kSub16Min;
  }

  // The fp16 scales and minima of a block in GGUF.
  [[nodiscard]] constexpr int32_t num_half_scales() const {
    switch (scales) {
      case ScaleLayout::kHalf:
      case ScaleLayout::kSub32:
      case ScaleLayout::kSub16:
        return 1;
      default:
        return has_min() ? 2 : 0;
    }
  }

  // Columns per scale where scales are tensors of their own in a checkpoint; 0: one for a row, or
  // scales inside blocks.
  [[nodiscard]] constexpr int32_t columns_per_scale() const {
    switch (scales) {
      case ScaleLayout::kSub16E4M3:
        return 16;
      case ScaleLayout::kExponent:
      case ScaleLayout::kFloat32:
        return 32;
      case ScaleLayout::kFloat128:
      case ScaleLayout::kBlock128:
        return 128;
      default:
        return 0;
    }
  }

  // Whether an output is one int32 sum over all of K, scaled once.
  [[nodiscard]] constexpr bool has_int32_sums() const {
    return is_integer() && scales == ScaleLayout::kChannel;
  }

  // Whether the scales at a tile's start multiply an output's whole sum and are not part of d_w.
  [[nodiscard]] constexpr bool scales_folded_sums() const {
    return scales == ScaleLayout::kSub16E4M3 || (is_e4m3() && scales == ScaleLayout::kChannel);
  }

  // Whether a GPU reads rows (repack.h) in place of tiles.
  [[nodiscard]] constexpr bool has_rows() const { return !is_integer() || has_int32_sums(); }
};

#define SLUICE_LAYOUT(format, name, type, k, bytes, element, zero, at, low, high, n, scales) \
  {low, high, n, ScaleLayout::scales, ElementFormat::element, zero},
inline constexpr PackedLayout kPackedLayouts[] = {SLUICE_WEIGHT_FORMATS(SLUICE_LAYOUT)};
#undef SLUICE_LAYOUT

constexpr const PackedLayout& layout_of(WeightFormat format) {
  return kPackedLayouts[static_cast<size_t>(format)];
}

// What kernels that are templates over the format ask.
template <WeightFormat kFormat>
inline constexpr PackedLayout kLayoutOf = layout_of(kFormat);

template <WeightFormat kFormat>
inline constexpr bool kHalves = kLayoutOf<kFormat>.has_halves();

template <WeightFormat kFormat>
inline constexpr bool kHasZeros = kLayoutOf<kFormat>.has_zeros();

template <WeightFormat kFormat>
inline constexpr bool kHasMin = kLayoutOf<kFormat>.has_min();

template <WeightFormat kFormat>
inline constexpr bool kHasCodebook = kLayoutOf<kFormat>.codebook() != nullptr;

template <WeightFormat kFormat>
inline constexpr bool kIsE2M1 = kLayoutOf<kFormat>.element == ElementFormat::kE2M1;

// Calls f.operator()<format>() for any format.
template <typename F>
[[gnu::always_inline]] inline void with_format(WeightFormat format, F f) {
  switch (format) {
#define SLUICE_CASE(name, ...) \
  case WeightFormat::name:     \
    return f.template operator()<WeightFormat::name>();
    SLUICE_WEIGHT_FORMATS(SLUICE_CASE)
#undef SLUICE_CASE
  }
}

// Calls f.operator()<format>() for a format in tiles on every device; does nothing if has_rows().
template <typename F>
[[gnu::always_inline]] inline void with_block_format(WeightFormat format, F f) {
  with_format(format, [&]<WeightFormat kFormat>() {
    if constexpr (!kLayoutOf<kFormat>.has_rows()) f.template operator()<kFormat>();
  });
}

}  // namespace sluice
