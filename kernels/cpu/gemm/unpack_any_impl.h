// SPDX-License-Identifier: Apache-2.0
// Groups of any format in one form, for paths that need not run at full speed: float activations
// with integer weights, embedding rows, and the whole scalar set.
#pragma once

#include "kernels/cpu/gemm/weights_impl.h"
#include "kernels/cpu/isa/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// A group of any integer format, widened to 16 bits.
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
  if constexpr (kHasZeros<kFormat>) {
    for (int i = 0; i < kQuantGroup * kRowTile; ++i) {
      out.words[i] = static_cast<int16_t>(out.words[i] - bytes_at(at.super)[i / 2 % kRowTile]);
    }
    out.scales.minimum[0] = zero();
  }
  out.halves = kHalves<kFormat>;
  out.has_min = kHasMin<kFormat>;
}

// Returns null for formats without integers.
[[maybe_unused]] static WidenFn widen_of(WeightFormat format) {
  WidenFn widen = nullptr;
  with_format(format, [&]<WeightFormat kFormat>() {
    if constexpr (kLayoutOf<kFormat>.is_integer()) widen = widen_group<kFormat>;
  });
  return widen;
}

// Expands a group of e4m3 codes to floats, [32 k][16 outputs], times their scale per 128.
template <WeightFormat kFormat>
SLUICE_INLINE void expand_e4m3(const std::byte* tile, int32_t group, float* buffer) {
  const GroupAt at = group_at<kFormat>(tile, group);
  const uint8_t* const codes = bytes_at(at.codes);
  for (int k = 0; k < kQuantGroup; ++k) {
    alignas(16) uint8_t column[kRowTile];
    for (int r = 0; r < kRowTile; ++r) {
      column[r] = codes[k / 4 * 64 + r / 4 * 16 + k % 4 / 2 * 8 + r % 4 * 2 + k % 2];
    }
    V16 value = mul(load_e4m3(column), broadcast(256.0F));
    if constexpr (kLayoutOf<kFormat>.columns_per_scale() != 0) {
      value = mul(value, load(reinterpret_cast<const float*>(at.super)));
    }
    store(buffer + k * kRowTile, value);
  }
}

// Expands a group of 16-bit floats.
template <WeightFormat kFormat>
SLUICE_INLINE void expand_halves(const std::byte* tile, int32_t group, float* buffer) {
  const uint16_t* const halves = halves_at(tile) + int64_t{group} * kQuantGroup * kRowTile;
  for (int i = 0; i < kQuantGroup * kRowTile; i += 16) {
    constexpr bool kBf16 = kLayoutOf<kFormat>.element == ElementFormat::kBF16;
    store(buffer + i, kBf16 ? load_bf16(halves + i) : load_half(halves + i));
  }
}

// Expands a group of integers.
SLUICE_INLINE void expand_wide(const WideGroup& wide, float* buffer) {
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
}

// Returns the weights of a group as floats, [32 k][16 outputs], in `buffer` unless they are stored
// so. Scales that multiply folded sums (kernels/gemm.h) are left out.
[[maybe_unused]] static const float* expand_group(WeightFormat format,
                                                  const std::byte* tile,
                                                  int32_t group,
                                                  float* buffer) {
  if (const WidenFn widen = widen_of(format); widen != nullptr) {
    WideGroup wide;
    widen(tile, group, wide);
    expand_wide(wide, buffer);
    return buffer;
  }
  const float* expanded = buffer;
  with_format(format, [&]<WeightFormat kFormat>() {
    constexpr PackedLayout kLayout = kLayoutOf<kFormat>;
    if constexpr (kLayout.is_e4m3()) {
      expand_e4m3<kFormat>(tile, group, buffer);
    } else if constexpr (kLayout.low_bits == 16) {
      expand_halves<kFormat>(tile, group, buffer);
    } else if constexpr (kLayout.is_float()) {
      expanded = reinterpret_cast<const float*>(tile) + int64_t{group} * kQuantGroup * kRowTile;
    }
  });
  return expanded;
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
