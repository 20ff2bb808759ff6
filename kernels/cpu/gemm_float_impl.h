// SPDX-License-Identifier: Apache-2.0
// The float activations of gemm_impl.h.
#pragma once

#include "kernels/cpu/gemm_impl.h"
#include "kernels/cpu/wide_impl.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// The weights of one group as an FMA wants them: 16 outputs of column k.
template <WeightFormat kFormat>
struct FloatWeights {
  const uint16_t* halves;

  FloatWeights(const LinearBlock&, const std::byte* tile, int32_t group)
      : halves(halves_at(tile) + int64_t{group} * kQuantGroup * kRowTile) {}

  [[gnu::always_inline]] V16 column(int k) const {
    const uint16_t* const at = halves + k * kRowTile;
    return kFormat == WeightFormat::kBF16 ? load_bf16(at) : load_half(at);
  }
};

// Of any other format, through a buffer.
struct ExpandedWeights {
  alignas(64) float buffer[kQuantGroup * kRowTile];
  const float* weights;

  ExpandedWeights(const LinearBlock& block, const std::byte* tile, int32_t group)
      : weights(expand_group(block.format, tile, group, buffer)) {}

  [[gnu::always_inline]] V16 column(int k) const { return load(weights + k * kRowTile); }
};

// `x`: the group's columns of the first row, the next rows `stride` elements apart.
template <typename Weights, int kRows>
SLUICE_INLINE void add_float_group(const Weights& weights,
                                   const float* x,
                                   int64_t stride,
                                   V16* acc) {
#pragma GCC unroll 4
  for (int k = 0; k < kQuantGroup; ++k) {
    const V16 w = weights.column(k);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[r] = fma(w, broadcast(x[r * stride + k]), acc[r]);
  }
}

template <typename Weights>
struct FloatRows {
  template <int kTiles, int kRows>
  static void run(const LinearBlock& block, int32_t tile, int64_t row) {
    const std::byte* const weight = block.weight + tile * block.tile_bytes;
    const int64_t stride = int64_t{block.num_groups} * kQuantGroup;
    const float* const x = static_cast<const float*>(block.x) + row * stride;
    const auto add = [&](int32_t group, V16 * acc) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t) {
        const Weights w(block, weight + t * block.tile_bytes, block.first_group + group);
        add_float_group<Weights, kRows>(
            w, x + int64_t{group} * kQuantGroup, stride, acc + t * kRows);
      }
    };
    fold_segments<kTiles, kRows>(block, tile, row, add);
  }
};

static void linear_float(const LinearBlock& block) {
  switch (block.format) {
    case WeightFormat::kF16:
      return linear_tiles<FloatRows<FloatWeights<WeightFormat::kF16>>>(block);
    case WeightFormat::kBF16:
      return linear_tiles<FloatRows<FloatWeights<WeightFormat::kBF16>>>(block);
    default:
      return linear_tiles<FloatRows<ExpandedWeights>>(block);
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
