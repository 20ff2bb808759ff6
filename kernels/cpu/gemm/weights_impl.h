// SPDX-License-Identifier: Apache-2.0
// Groups of a packed weight as linear_<isa>.cpp reads them: the differences between formats. The
// layout is quant/repack.h's; gemm_<isa>.h unpacks registers of codes.
#pragma once

#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// log2 of the amount that unsigned codes are too high by, so that a shift multiplies by it.
consteval int zero_point_shift(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ3_K:
      return 2;
    case WeightFormat::kQ4_0:
      return 3;
    case WeightFormat::kQ5_0:
    case WeightFormat::kMXFP4:  // the codebook's, moved up
    case WeightFormat::kNVFP4:
      return 4;
    case WeightFormat::kQ6_K:
      return 5;
    case WeightFormat::kQ8_0:
    case WeightFormat::kInt8Channel:
    case WeightFormat::kIQ4_NL:
    case WeightFormat::kIQ4_XS:
      return 7;
    default:
      return 0;
  }
}

template <WeightFormat kFormat>
inline constexpr int kZeroPoint = zero_point_shift(kFormat) == 0 ? 0
                                                                 : 1 << zero_point_shift(kFormat);

struct Codebook {
  uint8_t v[16];
};

consteval Codebook move_up(const int8_t (&values)[16], int by) {
  Codebook codebook{};
  for (int i = 0; i < 16; ++i) codebook.v[i] = static_cast<uint8_t>(values[i] + by);
  return codebook;
}

template <WeightFormat kFormat>
inline constexpr Codebook kCodebook = move_up(kIsE2M1<kFormat> ? kMxfp4Codebook : kIq4Codebook,
                                              kZeroPoint<kFormat>);

template <WeightFormat kFormat>
inline constexpr int kLargestCode =
    kIsE2M1<kFormat> ? 28
    : kHasCodebook<kFormat>
        ? 241
        : (1 << (kLayoutOf<kFormat>.low_bits + kLayoutOf<kFormat>.high_bits)) - 1;

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

// Calls fn.operator()<kFormat>() for an integer format with scales inside K; does nothing for
// others, which have kernels of their own.
template <typename Fn>
SLUICE_INLINE void with_block_format(WeightFormat format, Fn fn) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return fn.template operator()<WeightFormat::kQ4_0>();
    case WeightFormat::kQ4_1:
      return fn.template operator()<WeightFormat::kQ4_1>();
    case WeightFormat::kQ5_0:
      return fn.template operator()<WeightFormat::kQ5_0>();
    case WeightFormat::kQ5_1:
      return fn.template operator()<WeightFormat::kQ5_1>();
    case WeightFormat::kQ8_0:
      return fn.template operator()<WeightFormat::kQ8_0>();
    case WeightFormat::kQ2_K:
      return fn.template operator()<WeightFormat::kQ2_K>();
    case WeightFormat::kQ3_K:
      return fn.template operator()<WeightFormat::kQ3_K>();
    case WeightFormat::kQ4_K:
      return fn.template operator()<WeightFormat::kQ4_K>();
    case WeightFormat::kQ5_K:
      return fn.template operator()<WeightFormat::kQ5_K>();
    case WeightFormat::kQ6_K:
      return fn.template operator()<WeightFormat::kQ6_K>();
    case WeightFormat::kIQ4_NL:
      return fn.template operator()<WeightFormat::kIQ4_NL>();
    case WeightFormat::kIQ4_XS:
      return fn.template operator()<WeightFormat::kIQ4_XS>();
    case WeightFormat::kMXFP4:
      return fn.template operator()<WeightFormat::kMXFP4>();
    case WeightFormat::kNVFP4:
      return fn.template operator()<WeightFormat::kNVFP4>();
    case WeightFormat::kInt4Group32:
      return fn.template operator()<WeightFormat::kInt4Group32>();
    case WeightFormat::kInt4Group128:
      return fn.template operator()<WeightFormat::kInt4Group128>();
    case WeightFormat::kInt8Group32:
      return fn.template operator()<WeightFormat::kInt8Group32>();
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
    case WeightFormat::kInt8Channel:
    case WeightFormat::kE4M3Channel:
    case WeightFormat::kE4M3Block:
      return;
  }
}

// Formats that are compiled in one file, where all of them in one take too long.
enum class FormatFamily { kBlocks, kSuperBlocks, kGroups };

constexpr FormatFamily family_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ2_K:
    case WeightFormat::kQ3_K:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
    case WeightFormat::kQ6_K:
    case WeightFormat::kIQ4_XS:
      return FormatFamily::kSuperBlocks;  // GGUF's of 256 weights
    case WeightFormat::kMXFP4:
    case WeightFormat::kNVFP4:
    case WeightFormat::kInt4Group32:
    case WeightFormat::kInt4Group128:
    case WeightFormat::kInt8Group32:
      return FormatFamily::kGroups;  // checkpoints' with scales as tensors of their own
    default:
      return FormatFamily::kBlocks;  // GGUF's of 32
  }
}

// with_block_format() for the formats of one family; does nothing for others.
template <FormatFamily kFamily, typename Fn>
SLUICE_INLINE void with_format_of(WeightFormat format, Fn fn) {
  with_block_format(format, [&]<WeightFormat kFormat>() {
    if constexpr (family_of(kFormat) == kFamily) fn.template operator()<kFormat>();
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
