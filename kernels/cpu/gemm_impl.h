// SPDX-License-Identifier: Apache-2.0
// Row tiles times rows of activations for simd_<isa>.cpp: the tree of kernels/gemm.h over the exact
// dot products of gemm_<isa>.h. A weight tile (16 outputs, all of K) stays in L1 while the rows of
// activations pass in blocks; inside a block each group's codes are unpacked once for all rows.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/cpu/vec16.h"
#if defined(SLUICE_ISA_AVX512)
#include "kernels/cpu/gemm_avx512.h"
#elif defined(SLUICE_ISA_AVX2)
#include "kernels/cpu/gemm_avx2.h"
#else
#include "kernels/cpu/gemm_scalar.h"
#endif

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr int32_t kSegments = 8;

template <WeightFormat kFormat>
inline constexpr int32_t kGroupBytes = 0;
template <>
inline constexpr int32_t kGroupBytes<WeightFormat::kF32> = 2048;
template <>
inline constexpr int32_t kGroupBytes<WeightFormat::kF16> = 1024;
template <>
inline constexpr int32_t kGroupBytes<WeightFormat::kQ8_0> = 576;
template <>
inline constexpr int32_t kGroupBytes<WeightFormat::kQ4_1> = 320;

// With many rows, the hardware's prefetcher alone leaves the memory idle while a group is
// multiplied; with few, it does better by itself. Prefetching past the end of the weights is
// harmless, and across tiles the next tile's start is wanted.
inline constexpr int32_t kPrefetchBytes = 5120;
inline constexpr int kPrefetchFromRows = 5;

template <int32_t kBytes>
SLUICE_INLINE void prefetch_ahead(const std::byte* weight) {
#pragma GCC unroll 32
  for (int32_t i = 0; i < kBytes; i += 64) __builtin_prefetch(weight + kPrefetchBytes + i);
}

SLUICE_INLINE const uint16_t* halves_at(const std::byte* p) {
  return reinterpret_cast<const uint16_t*>(p);
}

// acc[r] += one group of integer codes times codes, as the tree says. `record`: the group's
// activations of 8 rows, of which the kRows from `first` on are used.
template <WeightFormat kFormat, typename Code, int kRows>
SLUICE_INLINE void add_integer_group(const std::byte* weight,
                                     const std::byte* record,
                                     int first,
                                     V16 (&acc)[kRows]) {
  constexpr bool kHasMin = kFormat == WeightFormat::kQ4_1;
  const std::byte* const tail = weight + (kHasMin ? 256 : 512);
  const V16 scale = load_half(halves_at(tail));
  V16 minimum = scale;
  if constexpr (kHasMin) minimum = load_half(halves_at(tail + 32));
  const Code* const x = reinterpret_cast<const Code*>(record) + first * kQuantGroup;
  const auto* const scales =
      reinterpret_cast<const float*>(record + kActivationRows * kQuantGroup * sizeof(Code)) + first;
  const float* const sums = scales + kActivationRows;
  const auto* const code_sums = reinterpret_cast<const int32_t*>(sums + kActivationRows);
  const auto use = [&](int r, I16 dot) __attribute__((always_inline)) {
    // The zero point of Q8_0 is 2^7.
    const I16 isum = kHasMin ? dot : sub(dot, shift_left(broadcast(code_sums[r]), 7));
    acc[r] = fma(to_float(isum), mul(scale, broadcast(scales[r])), acc[r]);
    if constexpr (kHasMin) acc[r] = fma(minimum, broadcast(sums[r]), acc[r]);
  };
  if constexpr (sizeof(Code) == 1) {
    dot_int8<kFormat, kRows>(weight, x, use);
  } else {
    dot_int16<kFormat, kRows>(weight, x, use);
  }
}

// The 32 x 16 weights of a group as floats; `buffer` where they are not stored so.
template <WeightFormat kFormat>
SLUICE_INLINE const float* expand_group(const std::byte* weight, float* buffer) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return reinterpret_cast<const float*>(weight);
  } else if constexpr (kFormat == WeightFormat::kF16) {
    for (int k = 0; k < kQuantGroup; ++k) {
      store(buffer + k * 16, load_half(halves_at(weight) + k * 16));
    }
  } else {
    constexpr bool kNibbles = kFormat == WeightFormat::kQ4_1;
    const std::byte* const tail = weight + (kNibbles ? 256 : 512);
    const V16 scale = load_half(halves_at(tail));
    V16 minimum = zero();
    if constexpr (kNibbles) minimum = load_half(halves_at(tail + 32));
    for (int c = 0; c < (kNibbles ? 4 : 8); ++c) {
      const I16 dwords = load(reinterpret_cast<const int32_t*>(weight + c * 64));
      for (int j = 0; j < 4; ++j) {
        const auto shift = static_cast<unsigned>(8 * j);
        if constexpr (kNibbles) {
          const I16 low = bit_and(shift_right_logical(dwords, shift), broadcast(15));
          const I16 high = bit_and(shift_right_logical(dwords, shift + 4), broadcast(15));
          store(buffer + (4 * c + j) * 16, fma(to_float(low), scale, minimum));
          store(buffer + (4 * c + 16 + j) * 16, fma(to_float(high), scale, minimum));
        } else {
          const I16 code = bit_and(shift_right_logical(dwords, shift), broadcast(255));
          store(buffer + (4 * c + j) * 16,
                fma(to_float(sub(code, broadcast(128))), scale, minimum));
        }
      }
    }
  }
  return buffer;
}

// `x`: the group's columns of the first row, the next rows `stride` elements apart.
template <WeightFormat kFormat, int kRows>
SLUICE_INLINE void add_float_group(const std::byte* weight,
                                   const float* x,
                                   int64_t stride,
                                   V16 (&acc)[kRows]) {
  alignas(64) float buffer[kFormat == WeightFormat::kF32 ? 1 : kQuantGroup * kRowTile];
  const float* const weights = expand_group<kFormat>(weight, buffer);
  for (int k = 0; k < kQuantGroup; ++k) {
    const V16 w = load(weights + k * 16);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[r] = fma(w, broadcast(x[r * stride + k]), acc[r]);
  }
}

template <int kRows>
SLUICE_INLINE void write_outputs(const LinearBlock& block,
                                 int32_t tile,
                                 int64_t row,
                                 const V16 (&y)[kRows]) {
  const int32_t column = tile * kRowTile;
  const int32_t left = block.num_columns - column;
  const int32_t count = left < kRowTile ? left : kRowTile;
  V16 bias = zero();
  if (block.bias != nullptr) bias = load_partial(block.bias + column, count);
  for (int r = 0; r < kRows; ++r) {
    float* const out = block.out + (row + r) * block.out_stride + column;
    V16 value = y[r];
    if (block.bias != nullptr) value = add(value, bias);
    if (block.add) value = add(load_partial(out, count), value);
    store_partial(out, value, count);
  }
}

// One row tile times kRows rows. Segments fold as a binary counter: pending[l] holds the sum of a
// finished subtree of 2^l segments.
template <WeightFormat kFormat, ActivationFormat kActivation, int kRows>
static void linear_rows(const LinearBlock& block, int32_t tile, int64_t row) {
  const int64_t groups = block.num_groups;
  const std::byte* weight = block.weight + tile * groups * kGroupBytes<kFormat>;
  V16 pending[4][kRows];
  constexpr bool kFloat = kActivation == ActivationFormat::kFloat;
  const int64_t stride = groups * kQuantGroup;
  const int first = kRows < kActivationRows ? static_cast<int>(row % kActivationRows) : 0;
  constexpr int64_t kXGroupBytes = kFloat ? kQuantGroup * 4 : activation_record_bytes(kActivation);
  const std::byte* x = static_cast<const std::byte*>(block.x);
  x += kFloat ? row * stride * 4 : row / kActivationRows * groups * kXGroupBytes;
  int32_t group = 0;
  for (int32_t segment = 0; segment < kSegments; ++segment) {
    const auto end = static_cast<int32_t>((segment + 1) * groups / kSegments);
    V16 acc[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[r] = zero();
    for (; group < end; ++group) {
      if constexpr (kActivation == ActivationFormat::kInt8) {
        add_integer_group<kFormat, int8_t, kRows>(weight, x, first, acc);
      } else if constexpr (kActivation == ActivationFormat::kInt16) {
        add_integer_group<kFormat, int16_t, kRows>(weight, x, first, acc);
      } else {
        add_float_group<kFormat, kRows>(weight, reinterpret_cast<const float*>(x), stride, acc);
      }
      if constexpr (kRows >= kPrefetchFromRows) prefetch_ahead<kGroupBytes<kFormat>>(weight);
      weight += kGroupBytes<kFormat>;
      x += kXGroupBytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      V16 value = acc[r];
      int level = 0;
      for (; (segment >> level & 1) != 0; ++level) value = add(pending[level][r], value);
      pending[level][r] = value;
    }
  }
  write_outputs<kRows>(block, tile, row, pending[3]);
}

using RowsFn = void (*)(const LinearBlock& block, int32_t tile, int64_t row);

template <WeightFormat kFormat, ActivationFormat kActivation>
static void linear_tiles(const LinearBlock& block) {
  static constexpr RowsFn kByRows[8] = {
      linear_rows<kFormat, kActivation, 1>,
      linear_rows<kFormat, kActivation, 2>,
      linear_rows<kFormat, kActivation, 3>,
      linear_rows<kFormat, kActivation, 4>,
#if defined(SLUICE_ISA_AVX512)
      linear_rows<kFormat, kActivation, 5>,
      linear_rows<kFormat, kActivation, 6>,
      linear_rows<kFormat, kActivation, 7>,
      linear_rows<kFormat, kActivation, 8>,
#endif
  };
  for (int32_t tile = 0; tile < block.num_tiles; ++tile) {
    for (int64_t row = 0; row < block.num_rows; row += kRowsAtOnce) {
      const int64_t left = block.num_rows - row;
      kByRows[(left < kRowsAtOnce ? left : kRowsAtOnce) - 1](block, tile, row);
    }
  }
}

template <WeightFormat kFormat>
static void linear_integer(const LinearBlock& block) {
  switch (block.activation) {
    case ActivationFormat::kInt8:
      return linear_tiles<kFormat, ActivationFormat::kInt8>(block);
    case ActivationFormat::kInt16:
      return linear_tiles<kFormat, ActivationFormat::kInt16>(block);
    case ActivationFormat::kFloat:
      return linear_tiles<kFormat, ActivationFormat::kFloat>(block);
  }
}

// Float weights take float activations only; the caller checks.
static void linear_block(const LinearBlock& block) {
  switch (block.format) {
    case WeightFormat::kF32:
      return linear_tiles<WeightFormat::kF32, ActivationFormat::kFloat>(block);
    case WeightFormat::kF16:
      return linear_tiles<WeightFormat::kF16, ActivationFormat::kFloat>(block);
    case WeightFormat::kQ4_1:
      return linear_integer<WeightFormat::kQ4_1>(block);
    case WeightFormat::kQ8_0:
      return linear_integer<WeightFormat::kQ8_0>(block);
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
