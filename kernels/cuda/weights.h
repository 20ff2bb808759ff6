// SPDX-License-Identifier: Apache-2.0
// Reads weights in the layouts of quant/layout.h: rows, and the CPU's tiles, whose dwords of 4
// codes are tensor cores' operands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/ptx.h"
#include "quant/repack.h"

namespace sluice::kernels::cuda {

// Returns column i of a matrix's row; `scale` is that of its codes, if it has any.
template <WeightFormat kFormat>
__device__ __forceinline__ float weight_at(const std::byte* row, int32_t i, float scale) {
  constexpr ElementFormat kElement = kLayoutOf<kFormat>.element;
  if constexpr (kElement == ElementFormat::kF32) {
    return reinterpret_cast<const float*>(row)[i];
  } else if constexpr (kElement == ElementFormat::kF16) {
    return from_half(reinterpret_cast<const uint16_t*>(row)[i]);
  } else if constexpr (kElement == ElementFormat::kBF16) {
    return from_bf16(reinterpret_cast<const uint16_t*>(row)[i]);
  } else if constexpr (kElement == ElementFormat::kE4M3) {
    const float by_256 = e4m3_by_256(reinterpret_cast<const uint8_t*>(row)[i]);
    return __fmul_rn(__fmul_rn(by_256, 256.0F), scale);
  } else {
    return __fmaf_rn(__int2float_rn(reinterpret_cast<const int8_t*>(row)[i]), scale, 0.0F);
  }
}

// --- Tiles -----------------------------------------------------------------------------------

// The amount that stored codes, and zero points of groups, are too high by. Codes of 8 bits become
// signed bytes.
constexpr uint32_t zero_point(const PackedLayout& layout) {
  return layout.low_bits == 8 ? 128 : static_cast<uint32_t>(layout.zero_point);
}

template <WeightFormat kFormat>
inline constexpr uint32_t kZeroPoint = zero_point(kLayoutOf<kFormat>);

// Returns four entries of a format's codebook, from `kFirst` on.
template <WeightFormat kFormat, int kFirst>
constexpr uint32_t entries() {
  uint32_t all = 0;
  for (int i = 0; i < 4; ++i) {
    const int8_t value = kLayoutOf<kFormat>.codebook()[kFirst + i];
    all |= uint32_t{static_cast<uint8_t>(value)} << (8 * i);
  }
  return all;
}

// Returns the codebook's entries, in bytes, for the low four nibbles of `codes`.
template <WeightFormat kFormat>
__device__ __forceinline__ uint32_t looked_up(uint32_t codes) {
  constexpr uint32_t kEntries[4] = {
      entries<kFormat, 0>(), entries<kFormat, 4>(), entries<kFormat, 8>(), entries<kFormat, 12>()};
  const uint32_t in_half = codes & 0x7777U;
  const uint32_t low = gpu::ptx::select_bytes(kEntries[0], kEntries[1], in_half);
  const uint32_t high = gpu::ptx::select_bytes(kEntries[2], kEntries[3], in_half);
  // 127 where a code is below 8, elsewhere the sign of 127, which is 0.
  const uint32_t below = gpu::ptx::select_bytes(0x7F7F7F7FU, 0x7F7F7F7FU, codes);
  const uint32_t is_low = below | below << 1;
  return (low & is_low) | (high & ~is_low);
}

struct GroupAt {
  const std::byte* codes;
  const std::byte* scales;
  const std::byte* super;  // with zero points per group: the group's [16] uint8
};

// Returns the places of group `group` of a tile.
template <WeightFormat kFormat>
__device__ __forceinline__ GroupAt group_at(const std::byte* tile, int32_t group) {
  constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
  constexpr uint32_t kSpan = kLayout.groups_per_block;
  constexpr int32_t kBlockBytes = kLayout.block_bytes();
  constexpr int32_t kCodeBytes = kLayout.code_bytes();
  constexpr int32_t kScaleBytes = kLayout.scale_bytes();
  const uint32_t in_block = static_cast<uint32_t>(group) % kSpan;
  const std::byte* const block = tile + kLayout.tile_head_bytes() +
                                 int64_t{static_cast<uint32_t>(group) / kSpan} * kBlockBytes;
  const std::byte* const codes = block + in_block * kCodeBytes;
  const std::byte* const scales = block + kSpan * kCodeBytes;
  const std::byte* const super = scales + kSpan * kScaleBytes;
  if constexpr (kLayout.scales == ScaleLayout::kFloat32) {
    return {codes, scales + in_block * kScaleBytes, super + in_block * kRowTile};
  } else if constexpr (kLayout.scales == ScaleLayout::kFloat128) {
    const uint32_t of_four = in_block / 4;
    constexpr uint32_t kFloats = kRowTile * sizeof(float);
    return {codes, super + of_four * kFloats, super + kSpan / 4 * kFloats + of_four * kRowTile};
  } else {
    return {codes, scales + in_block * kScaleBytes, super};
  }
}

// The bytes of a tile that one group needs, side by side: codes, scales, its super-block's.
template <WeightFormat kFormat>
struct GroupRecord {
  static constexpr int32_t kCodeBytes = kLayoutOf<kFormat>.code_bytes();
  static constexpr int32_t kScaleBytes = kLayoutOf<kFormat>.scales == ScaleLayout::kFloat128
                                             ? kRowTile * int32_t{sizeof(float)}
                                             : kLayoutOf<kFormat>.scale_bytes();
  static constexpr int32_t kSuperBytes =
      kHasZeros<kFormat> ? kRowTile : kLayoutOf<kFormat>.super_bytes();
  static constexpr int32_t kBytes = kCodeBytes + kScaleBytes + kSuperBytes;
  static_assert(kCodeBytes % 16 == 0 && kScaleBytes % 16 == 0 && kBytes % 16 == 0);

  // Returns where byte `i` of the record is in the tile.
  __device__ __forceinline__ static const std::byte* source(const GroupAt& at, int32_t i) {
    if (i < kCodeBytes) return at.codes + i;
    i -= kCodeBytes;
    return i < kScaleBytes ? at.scales + i : at.super + (i - kScaleBytes);
  }

  __device__ __forceinline__ static GroupAt at(const std::byte* record) {
    return {record, record + kCodeBytes, record + kCodeBytes + kScaleBytes};
  }
};

// d_w and m_w of kernels/gemm.h for one output: [0] the group's, or [0] and [1] its halves'.
// `zero`: the group's zero point, relative to codes as chunk_of() returns them.
struct GroupScales {
  float scale[2];
  float minimum[2];
  int32_t zero;
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
  } else if constexpr (kHasZeros<kFormat>) {
    s.scale[0] = reinterpret_cast<const float*>(at.scales)[output];
    const auto zero = int32_t{reinterpret_cast<const uint8_t*>(at.super)[output]};
    s.zero = zero - int32_t{kZeroPoint<kFormat>};
  } else if constexpr (kScales == ScaleLayout::kSub16E4M3) {
    // Half of each scale, as codes are doubled.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      s.scale[h] = __fmul_rn(e4m3_by_256(bytes[h * kRowTile]), 128.0F);
    }
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

// Returns chunk c: 4 codes of one output, as signed bytes with the zero point taken off. load(r):
// the output's dword of register r of the group.
template <WeightFormat kFormat, typename Load>
__device__ __forceinline__ uint32_t chunk_of(int32_t c, Load load) {
  constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
  constexpr int kHigh = kLayout.low_bits;  // the register that the high plane begins with
  constexpr uint32_t kBytes = 0x01010101U;
  if constexpr (kHasCodebook<kFormat>) {
    static_assert(kLayout.low_bits == 4 && kLayout.high_bits == 0);
    const uint32_t both = load(c % 4);  // chunks c % 4 and c % 4 + 4, nibble by nibble
    return gpu::ptx::select_bytes(
        looked_up<kFormat>(both), looked_up<kFormat>(both >> 16), c < 4 ? 0x6420U : 0x7531U);
  }
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
  if constexpr (kZeroPoint<kFormat> != 0) {
    // Codes are moved up so that no byte borrows from the next, then the sign bit is flipped.
    constexpr uint32_t kUp = kBytes * (128 - kZeroPoint<kFormat>);
    return (codes + kUp) ^ 128 * kBytes;
  }
  return codes;
}

// Constants of two BF16 numbers each.
inline constexpr uint32_t kBf16Ones = 0x3F803F80U;
inline constexpr uint32_t kBf16MinusZeros = 0x80008000U;

// Returns a float that is exact in BF16, twice.
__device__ __forceinline__ uint32_t bf16_pair(float exact) {
  const uint32_t bits = bits_of(exact);
  return bits >> 16 | (bits & 0xFFFF0000U);
}

// Returns bytes 0 and 2, signed, as BF16: 128 plus the low 7 bits, less 128, or less 256 with the
// sign bit.
__device__ __forceinline__ uint32_t bf16_of_bytes(uint32_t bytes) {
  const uint32_t high = (bytes & 0x007F007FU) | 0x43004300U;
  const uint32_t less = (bytes & 0x00800080U) | 0xC300C300U;
  return gpu::ptx::fma_bf16x2(high, kBf16Ones, less);
}

// Returns E2M1 numbers, doubled, times 2^-127, from bits 3 to 0 and 19 to 16 of `codes` moved by
// `up`: exponent and mantissa go where BF16 has them, subnormal where E2M1 is.
template <int kUp>
__device__ __forceinline__ uint32_t small_bf16_of_e2m1(uint32_t codes) {
  const auto moved = [&](int up) { return up >= 0 ? codes << up : codes >> -up; };
  return (moved(6 + kUp) & 0x01C001C0U) | (moved(12 + kUp) & 0x80008000U);
}

// Four codes of one output, like chunk_of()'s, in BF16; E2M1 times 2^-127.
struct Bf16Chunk {
  uint32_t even;  // codes 0 and 2
  uint32_t odd;   // codes 1 and 3
};

// Returns chunk c, one of the first 4, of the group's first or second half.
template <WeightFormat kFormat, int kHalf, typename Load>
__device__ __forceinline__ Bf16Chunk bf16_chunk_of(int32_t c, Load load) {
  constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
  constexpr bool kNibbles = kLayout.low_bits == 4 && kLayout.high_bits == 0;
  if constexpr (kIsE2M1<kFormat>) {
    constexpr int kUp = -4 * kHalf;
    const uint32_t codes = load(c);
    return {small_bf16_of_e2m1<kUp>(codes), small_bf16_of_e2m1<kUp - 8>(codes)};
  } else if constexpr (kNibbles && !kHasCodebook<kFormat>) {
    // 128 plus the code, less 128 and the zero point.
    constexpr uint32_t kLess = 0xC300C300U + kZeroPoint<kFormat> * 0x00010001U;
    const uint32_t codes = load(c) >> (4 * kHalf);
    const auto less = [=](uint32_t nibbles) {
      const uint32_t high = (nibbles & 0x000F000FU) | 0x43004300U;
      return gpu::ptx::fma_bf16x2(high, kBf16Ones, kLess);
    };
    return {less(codes), less(codes >> 8)};
  } else {
    const uint32_t bytes = chunk_of<kFormat>(c + 4 * kHalf, load);
    return {bf16_of_bytes(bytes), bf16_of_bytes(bytes >> 8)};
  }
}

// Returns column i of one output of a tile.
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
  const float weight =
      __fmaf_rn(__int2float_rn(code - scales.zero), scales.scale[half], scales.minimum[half]);
  if constexpr (kLayoutOf<kFormat>.scales_folded_sums()) {
    return __fmul_rn(weight, reinterpret_cast<const float*>(tile)[output]);
  } else {
    return weight;
  }
}

}  // namespace sluice::kernels::cuda
