// SPDX-License-Identifier: Apache-2.0
// Groups of a packed weight as linear_<isa>.cpp reads them: the differences between formats. The
// layout is quant/layout.h's; gemm_<isa>.h unpacks registers of codes.
#pragma once

#include <bit>

#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// Returns what unsigned codes are too high by, 0 or a power of two: the zero point, or what takes
// all entries of a codebook to 0 or above.
consteval int unsigned_zero_point(const PackedLayout& layout) {
  int amount = layout.zero_point;
  for (int i = 0; i < 16 && layout.codebook() != nullptr; ++i) {
    while (amount < -layout.codebook()[i]) amount = amount == 0 ? 1 : 2 * amount;
  }
  return amount;
}

template <WeightFormat kFormat>
inline constexpr int kZeroPoint = unsigned_zero_point(kLayoutOf<kFormat>);

// Its log2, so that a shift multiplies by it.
template <WeightFormat kFormat>
inline constexpr int kZeroPointShift =
    kZeroPoint<kFormat> == 0 ? 0 : std::countr_zero(unsigned{kZeroPoint<kFormat>});

struct Codebook {
  uint8_t v[16];
};

consteval Codebook move_up(const int8_t* values, int by) {
  Codebook codebook{};
  for (int i = 0; i < 16; ++i) codebook.v[i] = static_cast<uint8_t>(values[i] + by);
  return codebook;
}

template <WeightFormat kFormat>
inline constexpr Codebook kCodebook = move_up(kLayoutOf<kFormat>.codebook(), kZeroPoint<kFormat>);

consteval int largest_code(const PackedLayout& layout) {
  if (layout.codebook() == nullptr) return (1 << layout.code_bits()) - 1;
  int highest = 0;
  for (int i = 0; i < 16; ++i) {
    if (layout.codebook()[i] > highest) highest = layout.codebook()[i];
  }
  return highest + unsigned_zero_point(layout);
}

template <WeightFormat kFormat>
inline constexpr int kLargestCode = largest_code(kLayoutOf<kFormat>);

struct GroupAt {
  const std::byte* codes;
  const std::byte* scales;
  const std::byte* super;  // super-block's scales, or the group's zero points
};

// Returns the places of group `group` of a tile.
template <WeightFormat kFormat>
SLUICE_INLINE GroupAt group_at(const std::byte* tile, int32_t group) {
  constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
  constexpr uint32_t kSpan = kLayout.groups_per_block;
  constexpr int64_t kBlockBytes = kLayout.block_bytes();
  constexpr int64_t kCodeBytes = kLayout.code_bytes();
  constexpr int64_t kScaleBytes = kLayout.scale_bytes();
  constexpr int64_t kHead = kLayout.tile_head_bytes();
  if constexpr (kLayout.scales == ScaleLayout::kChannel) {
    return {tile + kHead + group * kCodeBytes, tile, tile};
  }
  const uint32_t in_block = static_cast<uint32_t>(group) % kSpan;
  const std::byte* const block = tile + kHead + static_cast<uint32_t>(group) / kSpan * kBlockBytes;
  const std::byte* const codes = block + in_block * kCodeBytes;
  const std::byte* const scales = block + kSpan * kCodeBytes;
  const std::byte* const super = scales + kSpan * kScaleBytes;
  if constexpr (kLayout.scales == ScaleLayout::kFloat32) {
    return {codes, scales + in_block * kScaleBytes, super + in_block * kRowTile};
  } else if constexpr (kLayout.scales == ScaleLayout::kFloat128) {
    const uint32_t quad = in_block / 4;
    return {codes, super + quad * 64, super + kSpan / 4 * 64 + quad * kRowTile};
  }
  return {codes, scales + in_block * kScaleBytes, super};
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

// d_w and m_w of kernels/gemm.h for 16 outputs: [0] the whole group's, or [0] and [1] its halves'.
// Formats with zero points per group have no minima: minimum[0] holds the zero points, negated, as
// the bits of int32.
struct GroupScales {
  V16 scale[2];
  V16 minimum[2];
};

// Whether GroupScales::minimum is used.
template <WeightFormat kFormat>
inline constexpr bool kHasSecond = kHasMin<kFormat> || kHasZeros<kFormat>;

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
  } else if constexpr (kScales == ScaleLayout::kChannel) {
    s.scale[0] = load(reinterpret_cast<const float*>(at.scales));
  } else if constexpr (kHasZeros<kFormat>) {
    s.scale[0] = load(reinterpret_cast<const float*>(at.scales));
    s.minimum[0] = float_of_bits(sub(broadcast(0), load_narrow(bytes_at(at.super))));
  } else if constexpr (kScales == ScaleLayout::kSub16E4M3) {
    // Half of each scale, as codes are doubled; load_e4m3 gives values / 256.
    for (int h = 0; h < 2; ++h) {
      s.scale[h] = mul(load_e4m3(bytes_at(at.scales) + h * kRowTile), broadcast(128.0F));
    }
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

// Formats that are compiled in one file, where all of them in one take too long.
enum class FormatFamily { kBlocks, kSuperBlocks, kGroups };

consteval FormatFamily family_of(const PackedLayout& layout) {
  switch (layout.scales) {
    case ScaleLayout::kSub32:
    case ScaleLayout::kSub32Min:
    case ScaleLayout::kSub16:
    case ScaleLayout::kSub16Min:
      return FormatFamily::kSuperBlocks;  // GGUF's of 256 weights
    case ScaleLayout::kExponent:
    case ScaleLayout::kSub16E4M3:
    case ScaleLayout::kFloat32:
    case ScaleLayout::kFloat128:
      return FormatFamily::kGroups;  // checkpoints' with scales as tensors of their own
    default:
      return FormatFamily::kBlocks;  // GGUF's of 32
  }
}

SLUICE_INLINE FormatFamily family_of(WeightFormat format) {
  FormatFamily family = FormatFamily::kBlocks;
  with_format(format, [&]<WeightFormat kFormat>() { family = family_of(kLayoutOf<kFormat>); });
  return family;
}

// with_block_format() for the formats of one family; does nothing for others.
template <FormatFamily kFamily, typename Fn>
SLUICE_INLINE void with_format_of(WeightFormat format, Fn fn) {
  with_block_format(format, [&]<WeightFormat kFormat>() {
    if constexpr (family_of(kLayoutOf<kFormat>) == kFamily) fn.template operator()<kFormat>();
  });
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA

#if defined(SLUICE_ISA_AVX512)
#include "kernels/cpu/gemm/gemm_avx512.h"
#elif defined(SLUICE_ISA_AVX2)
#include "kernels/cpu/gemm/gemm_avx2.h"
#else
#include "kernels/cpu/gemm/gemm_scalar.h"
#endif
