// SPDX-License-Identifier: Apache-2.0
// Weights out of the layouts of quant/repack.h: rows of floats, kInt8Channel and FP8, and the
// CPU's tiles of formats in blocks, whose dwords of 4 codes are what tensor cores take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/narrow.h"
#include "quant/repack.h"

namespace sluice::kernels::cuda {

// Column i of a matrix's row; `scale` is that of its codes, if it has any.
template <WeightFormat kFormat>
__device__ __forceinline__ float weight_at(const std::byte* row, int32_t i, float scale) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return reinterpret_cast<const float*>(row)[i];
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return from_half(reinterpret_cast<const uint16_t*>(row)[i]);
  } else if constexpr (kFormat == WeightFormat::kBF16) {
    return from_bf16(reinterpret_cast<const uint16_t*>(row)[i]);
  } else if constexpr (is_e4m3(kFormat)) {
    const float by_256 = e4m3_by_256(reinterpret_cast<const uint8_t*>(row)[i]);
    return __fmul_rn(__fmul_rn(by_256, 256.0F), scale);
  } else {
    return __fmaf_rn(__int2float_rn(reinterpret_cast<const int8_t*>(row)[i]), scale, 0.0F);
  }
}

// --- Tiles -----------------------------------------------------------------------------------

// f.operator()<format>(), of a format that has blocks.
template <typename F>
void with_block_format(WeightFormat format, const F& f) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return f.template operator()<WeightFormat::kQ4_0>();
    case WeightFormat::kQ4_1:
      return f.template operator()<WeightFormat::kQ4_1>();
    case WeightFormat::kQ5_0:
      return f.template operator()<WeightFormat::kQ5_0>();
    case WeightFormat::kQ5_1:
      return f.template operator()<WeightFormat::kQ5_1>();
    case WeightFormat::kQ8_0:
      return f.template operator()<WeightFormat::kQ8_0>();
    case WeightFormat::kQ2_K:
      return f.template operator()<WeightFormat::kQ2_K>();
    case WeightFormat::kQ3_K:
      return f.template operator()<WeightFormat::kQ3_K>();
    case WeightFormat::kQ4_K:
      return f.template operator()<WeightFormat::kQ4_K>();
    case WeightFormat::kQ5_K:
      return f.template operator()<WeightFormat::kQ5_K>();
    case WeightFormat::kQ6_K:
      return f.template operator()<WeightFormat::kQ6_K>();
    case WeightFormat::kIQ4_NL:
      return f.template operator()<WeightFormat::kIQ4_NL>();
    case WeightFormat::kIQ4_XS:
      return f.template operator()<WeightFormat::kIQ4_XS>();
    case WeightFormat::kMXFP4:
      return f.template operator()<WeightFormat::kMXFP4>();
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
    case WeightFormat::kInt8Channel:
    case WeightFormat::kNVFP4:
    case WeightFormat::kInt4Group32:
    case WeightFormat::kInt4Group128:
    case WeightFormat::kInt8Group32:
    case WeightFormat::kE4M3Channel:
    case WeightFormat::kE4M3Block:
      break;
  }
  SLUICE_UNREACHABLE("a format without blocks");
}

// What stored codes are too high by.
constexpr uint32_t zero_point(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ3_K:
      return 4;
    case WeightFormat::kQ4_0:
      return 8;
    case WeightFormat::kQ5_0:
      return 16;
    case WeightFormat::kQ6_K:
      return 32;
    case WeightFormat::kQ8_0:
      return 128;
    default:
      return 0;
  }
}

// Eight entries of a codebook as one number, from entry `first` on.
constexpr uint64_t entries(const int8_t (&codebook)[16], int first) {
  uint64_t all = 0;
  for (int i = 0; i < 8; ++i) {
    all |= uint64_t{static_cast<uint8_t>(codebook[first + i])} << (8 * i);
  }
  return all;
}

template <WeightFormat kFormat, int kFirst>
inline constexpr uint64_t kEntries = entries(kFormat == WeightFormat::kMXFP4 ? kMxfp4Codebook
                                                                             : kIq4Codebook,
                                             kFirst);

struct GroupAt {
  const std::byte* codes;
  const std::byte* scales;
  const std::byte* super;
};

// Group `group` of a tile.
template <WeightFormat kFormat>
__device__ __forceinline__ GroupAt group_at(const std::byte* tile, int32_t group) {
  constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
  constexpr uint32_t kSpan = kLayout.groups_per_block;
  constexpr int32_t kBlockBytes = kLayout.block_bytes();
  constexpr int32_t kCodeBytes = kLayout.code_bytes();
  constexpr int32_t kScaleBytes = kLayout.scale_bytes();
  const uint32_t in_block = static_cast<uint32_t>(group) % kSpan;
  const std::byte* const block = tile + int64_t{static_cast<uint32_t>(group) / kSpan} * kBlockBytes;
  const std::byte* const scales = block + kSpan * kCodeBytes;
  return {
      block + in_block * kCodeBytes, scales + in_block * kScaleBytes, scales + kSpan * kScaleBytes};
}

// d_w and m_w of kernels/gemm.h for one output: of the group in [0], or of its halves.
struct GroupScales {
  float scale[2];
  float minimum[2];
};

template <WeightFormat kFormat>
__device__ __forceinline__ GroupScales load_scales(const GroupAt& at, int32_t output) {
  constexpr ScaleLayout kScales = kLayoutOf<kFormat>.scales;
  GroupScales s{};
  const auto* const bytes = reinterpret_cast<const uint8_t*>(at.scales) + output;
  const auto* const halves = reinterpret_cast<const uint16_t*>(at.scales) + output;
  const auto* const super = reinterpret_cast<const uint16_t*>(at.super) + output;
  if constexpr (kScales == ScaleLayout::kHalf || kScales == ScaleLayout::kHalfMin) {
    s.scale[0] = from_half(halves[0]);
    if constexpr (kHasMin<kFormat>) s.minimum[0] = from_half(halves[kRowTile]);
  } else if constexpr (kScales == ScaleLayout::kExponent) {
    // 2^(e - 128): e - 1 in the exponent field; subnormal for 0 and 1.
    const uint32_t e = bytes[0];
    s.scale[0] = float_of(e < 2 ? (e + 1) << 21 : (e - 1) << 23);
  } else {
    const float d = from_half(super[0]);
    const float m = kHasMin<kFormat> ? -from_half(super[kRowTile]) : 0.0F;
#pragma unroll
    for (int h = 0; h < (kHalves<kFormat> ? 2 : 1); ++h) {
      const int32_t code = bytes[h * kRowTile];
      if constexpr (kScales == ScaleLayout::kSub16Min) {
        s.scale[h] = __fmul_rn(d, __int2float_rn(code & 15));
        s.minimum[h] = __fmul_rn(m, __int2float_rn(code >> 4));
      } else if constexpr (kScales == ScaleLayout::kSub32Min) {
        const int32_t minimum = bytes[kRowTile];
        s.scale[h] = __fmul_rn(d, __int2float_rn(code));
        s.minimum[h] = __fmul_rn(m, __int2float_rn(minimum));
      } else {
        s.scale[h] = __fmul_rn(d, __int2float_rn(static_cast<int8_t>(code)));
      }
    }
  }
  return s;
}

// Chunk c of 4 codes of one output, as signed bytes with the zero point taken off. load(r): its
// dword of register r of the group.
template <WeightFormat kFormat, typename Load>
__device__ __forceinline__ uint32_t chunk_of(int32_t c, Load load) {
  constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
  constexpr int kHigh = kLayout.low_bits;  // the register that the high plane begins with
  constexpr uint32_t kBytes = 0x01010101U;
  uint32_t codes;
  if constexpr (kLayout.low_bits == 8) {
    codes = load(c);
  } else if constexpr (kLayout.low_bits == 4) {
    codes = load(c % 4) >> (c / 4 * 4) & 15 * kBytes;
  } else {
    codes = load(c / 4) >> (c % 4 * 2) & 3 * kBytes;
  }
  if constexpr (kLayout.high_bits == 1) {
    codes |= (load(kHigh) >> c & kBytes) << kHigh;
  } else if constexpr (kLayout.high_bits == 2) {
    codes |= (load(kHigh + c / 4) >> (c % 4 * 2) & 3 * kBytes) << kHigh;
  }
  if constexpr (kHasCodebook<kFormat>) {
    uint32_t values = 0;
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
      const uint32_t code = codes >> i & 15;
      const uint64_t half = code < 8 ? kEntries<kFormat, 0> : kEntries<kFormat, 8>;
      values |= (static_cast<uint32_t>(half >> (code % 8 * 8)) & 0xFFU) << i;
    }
    return values;
  } else if constexpr (zero_point(kFormat) != 0) {
    // Moved up to where no byte borrows from the next, then the sign turned.
    constexpr uint32_t kUp = (128 - zero_point(kFormat)) * kBytes;
    return (codes + kUp) ^ 128 * kBytes;
  }
  return codes;
}

// Column i of one output of a tile.
template <WeightFormat kFormat>
__device__ __forceinline__ float tile_weight_at(const std::byte* tile, int32_t output, int32_t i) {
  const GroupAt at = group_at<kFormat>(tile, i / kQuantGroup);
  const auto* const registers = reinterpret_cast<const uint32_t*>(at.codes) + output;
  const int32_t in_group = i % kQuantGroup;
  const uint32_t chunk =
      chunk_of<kFormat>(in_group / 4, [&](int32_t r) { return registers[r * kRowTile]; });
  const auto code = static_cast<int8_t>(chunk >> (in_group % 4 * 8) & 0xFFU);
  const GroupScales scales = load_scales<kFormat>(at, output);
  const int half = kHalves<kFormat> ? in_group / 16 : 0;
  return __fmaf_rn(__int2float_rn(code), scales.scale[half], scales.minimum[half]);
}

}  // namespace sluice::kernels::cuda
