// SPDX-License-Identifier: Apache-2.0
// Groups of a packed weight as simd_<isa>.cpp reads them: what differs between formats. The layout
// is quant/repack.h's; how a register of codes is unpacked is in gemm_<isa>.h.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/cpu/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

template <WeightFormat kFormat>
inline constexpr PackedLayout kLayoutOf = kPackedLayouts[static_cast<int>(kFormat)];

// The first and the second 16 k have scales of their own.
template <WeightFormat kFormat>
inline constexpr bool kHalves = kLayoutOf<kFormat>.scales == ScaleLayout::kSub16 ||
                                kLayoutOf<kFormat>.scales == ScaleLayout::kSub16Min;

template <WeightFormat kFormat>
inline constexpr bool kHasMin = kLayoutOf<kFormat>.scales == ScaleLayout::kHalfMin ||
                                kLayoutOf<kFormat>.scales == ScaleLayout::kSub32Min ||
                                kLayoutOf<kFormat>.scales == ScaleLayout::kSub16Min;

template <WeightFormat kFormat>
inline constexpr bool kHasCodebook =
    kFormat == WeightFormat::kIQ4_NL || kFormat == WeightFormat::kIQ4_XS ||
    kFormat == WeightFormat::kMXFP4;

// What unsigned codes are too high by; powers of two, so that a shift multiplies with it.
consteval int zero_point_shift(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ3_K:
      return 2;
    case WeightFormat::kQ4_0:
      return 3;
    case WeightFormat::kQ5_0:
    case WeightFormat::kMXFP4:  // its codebook's, moved up
      return 4;
    case WeightFormat::kQ6_K:
      return 5;
    case WeightFormat::kQ8_0:
    case WeightFormat::kIQ4_NL:
    case WeightFormat::kIQ4_XS:
      return 7;
    default:
      return 0;
  }
}

template <WeightFormat kFormat>
inline constexpr int kZeroPoint =
    zero_point_shift(kFormat) == 0 ? 0 : 1 << zero_point_shift(kFormat);

struct Codebook {
  uint8_t v[16];
};

consteval Codebook move_up(const int8_t (&values)[16], int by) {
  Codebook codebook{};
  for (int i = 0; i < 16; ++i) codebook.v[i] = static_cast<uint8_t>(values[i] + by);
  return codebook;
}

template <WeightFormat kFormat>
inline constexpr Codebook kCodebook =
    move_up(kFormat == WeightFormat::kMXFP4 ? kMxfp4Codebook : kIq4Codebook, kZeroPoint<kFormat>);

template <WeightFormat kFormat>
inline constexpr int kLargestCode =
    kFormat == WeightFormat::kMXFP4 ? 28
    : kHasCodebook<kFormat>
        ? 241
        : (1 << (kLayoutOf<kFormat>.low_bits + kLayoutOf<kFormat>.high_bits)) - 1;

struct GroupAt {
  const std::byte* codes;
  const std::byte* scales;
  const std::byte* super;
};

// Group `group` of a tile.
template <WeightFormat kFormat>
SLUICE_INLINE GroupAt group_at(const std::byte* tile, int32_t group) {
  constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
  constexpr uint32_t kSpan = kLayout.groups_per_block;
  constexpr int64_t kBlockBytes = kLayout.block_bytes();
  constexpr int64_t kCodeBytes = kLayout.code_bytes();
  constexpr int64_t kScaleBytes = kLayout.scale_bytes();
  const uint32_t in_block = static_cast<uint32_t>(group) % kSpan;
  const std::byte* const block = tile + static_cast<uint32_t>(group) / kSpan * kBlockBytes;
  const std::byte* const scales = block + kSpan * kCodeBytes;
  return {
      block + in_block * kCodeBytes, scales + in_block * kScaleBytes, scales + kSpan * kScaleBytes};
}

SLUICE_INLINE const uint16_t* halves_at(const std::byte* p) {
  return reinterpret_cast<const uint16_t*>(p);
}

SLUICE_INLINE const uint8_t* bytes_at(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}

SLUICE_INLINE const int8_t* signed_at(const std::byte* p) {
  return reinterpret_cast<const int8_t*>(p);
}

SLUICE_INLINE V16 negate(V16 a) { return sub(broadcast(-0.0F), a); }

// d_w and m_w of kernels/gemm.h for 16 outputs: of the whole group in [0], or of its halves.
struct GroupScales {
  V16 scale[2];
  V16 minimum[2];
};

template <WeightFormat kFormat>
SLUICE_INLINE GroupScales load_scales(const GroupAt& at) {
  constexpr ScaleLayout kScales = kLayoutOf<kFormat>.scales;
  GroupScales s{{zero(), zero()}, {zero(), zero()}};
  if constexpr (kScales == ScaleLayout::kHalf || kScales == ScaleLayout::kHalfMin) {
    s.scale[0] = load_half(halves_at(at.scales));
    if constexpr (kHasMin<kFormat>) s.minimum[0] = load_half(halves_at(at.scales) + kRowTile);
  } else if constexpr (kScales == ScaleLayout::kExponent) {
    // 2^(e - 128): e - 1 in the exponent field; subnormal for 0 and 1.
    const I16 e = load_narrow(bytes_at(at.scales));
    const I16 normal = shift_left(sub(e, broadcast(1)), 23);
    const I16 subnormal = shift_left(add(e, broadcast(1)), 21);
    s.scale[0] = float_of_bits(select(less(e, broadcast(2)), subnormal, normal));
  } else {
    const V16 d = load_half(halves_at(at.super));
    if constexpr (kScales == ScaleLayout::kSub32) {
      s.scale[0] = mul(d, to_float(load_narrow(signed_at(at.scales))));
    } else if constexpr (kScales == ScaleLayout::kSub32Min) {
      const V16 m = negate(load_half(halves_at(at.super) + kRowTile));
      s.scale[0] = mul(d, to_float(load_narrow(bytes_at(at.scales))));
      s.minimum[0] = mul(m, to_float(load_narrow(bytes_at(at.scales) + kRowTile)));
    } else if constexpr (kScales == ScaleLayout::kSub16) {
      s.scale[0] = mul(d, to_float(load_narrow(signed_at(at.scales))));
      s.scale[1] = mul(d, to_float(load_narrow(signed_at(at.scales) + kRowTile)));
    } else {
      const V16 m = negate(load_half(halves_at(at.super) + kRowTile));
      for (int h = 0; h < 2; ++h) {
        const I16 both = load_narrow(bytes_at(at.scales) + h * kRowTile);
        s.scale[h] = mul(d, to_float(bit_and(both, broadcast(15))));
        s.minimum[h] = mul(m, to_float(shift_right_logical(both, 4)));
      }
    }
  }
  return s;
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA

#if defined(SLUICE_ISA_AVX512)
#include "kernels/cpu/gemm_avx512.h"
#elif defined(SLUICE_ISA_AVX2)
#include "kernels/cpu/gemm_avx2.h"
#else
#include "kernels/cpu/gemm_scalar.h"
#endif

namespace sluice::kernels::cpu::SLUICE_ISA {

// A group of any integer format, widened: what paths share that need not run at full speed.
struct WideGroup {
  alignas(64) int16_t words[kQuantGroup * kRowTile];  // [16 k pairs][16 outputs][2 k]
  GroupScales scales;
  bool halves;
  bool has_min;
};

using WidenFn = void (*)(const std::byte* tile, int32_t group, WideGroup& out);

template <WeightFormat kFormat>
static void widen_group(const std::byte* tile, int32_t group, WideGroup& out) {
  const GroupAt at = group_at<kFormat>(tile, group);
  widen_codes<kFormat>(at.codes, out.words);
  out.scales = load_scales<kFormat>(at);
  out.halves = kHalves<kFormat>;
  out.has_min = kHasMin<kFormat>;
}

// Null for float formats.
static WidenFn widen_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return nullptr;
    case WeightFormat::kQ4_0:
      return widen_group<WeightFormat::kQ4_0>;
    case WeightFormat::kQ4_1:
      return widen_group<WeightFormat::kQ4_1>;
    case WeightFormat::kQ5_0:
      return widen_group<WeightFormat::kQ5_0>;
    case WeightFormat::kQ5_1:
      return widen_group<WeightFormat::kQ5_1>;
    case WeightFormat::kQ8_0:
      return widen_group<WeightFormat::kQ8_0>;
    case WeightFormat::kQ2_K:
      return widen_group<WeightFormat::kQ2_K>;
    case WeightFormat::kQ3_K:
      return widen_group<WeightFormat::kQ3_K>;
    case WeightFormat::kQ4_K:
      return widen_group<WeightFormat::kQ4_K>;
    case WeightFormat::kQ5_K:
      return widen_group<WeightFormat::kQ5_K>;
    case WeightFormat::kQ6_K:
      return widen_group<WeightFormat::kQ6_K>;
    case WeightFormat::kIQ4_NL:
      return widen_group<WeightFormat::kIQ4_NL>;
    case WeightFormat::kIQ4_XS:
      return widen_group<WeightFormat::kIQ4_XS>;
    case WeightFormat::kMXFP4:
      return widen_group<WeightFormat::kMXFP4>;
  }
  return nullptr;
}

// The weights of a group as floats, [32 k][16 outputs]; in `buffer` where they are not stored so.
static const float* expand_group(WeightFormat format,
                                 const std::byte* tile,
                                 int32_t group,
                                 float* buffer) {
  if (format == WeightFormat::kF32) {
    return reinterpret_cast<const float*>(tile) + int64_t{group} * kQuantGroup * kRowTile;
  }
  const WidenFn widen = widen_of(format);
  if (widen == nullptr) {
    const uint16_t* const halves = halves_at(tile) + int64_t{group} * kQuantGroup * kRowTile;
    for (int i = 0; i < kQuantGroup * kRowTile; i += 16) {
      const bool bf16 = format == WeightFormat::kBF16;
      store(buffer + i, bf16 ? load_bf16(halves + i) : load_half(halves + i));
    }
    return buffer;
  }
  WideGroup wide;
  widen(tile, group, wide);
  for (int p = 0; p < 16; ++p) {
    const int h = wide.halves ? p / 8 : 0;
    const V16 scale = wide.scales.scale[h];
    const V16 minimum = wide.scales.minimum[h];
    int32_t lanes[kRowTile];
    std::memcpy(lanes, wide.words + p * 32, sizeof(lanes));
    const I16 pairs = load(lanes);
    const I16 even = shift_right_arithmetic(shift_left(pairs, 16), 16);
    const I16 odd = shift_right_arithmetic(pairs, 16);
    store(buffer + p * 32, fma(to_float(even), scale, minimum));
    store(buffer + p * 32 + 16, fma(to_float(odd), scale, minimum));
  }
  return buffer;
}

static void embedding_row(const EmbeddingRow& row) {
  alignas(64) float buffer[kQuantGroup * kRowTile];
  for (int32_t k = 0; k < row.k; k += kQuantGroup) {
    const float* const w = expand_group(row.format, row.tile, k / kQuantGroup, buffer);
    const int32_t count = row.k - k < kQuantGroup ? row.k - k : kQuantGroup;
    for (int32_t j = 0; j < count; ++j) row.out[k + j] = w[j * kRowTile + row.row_in_tile];
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
