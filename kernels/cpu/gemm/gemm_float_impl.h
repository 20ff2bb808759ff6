// SPDX-License-Identifier: Apache-2.0
// Float activations, for the tree of gemm_impl.h.
#pragma once

#include <limits>

#include "kernels/cpu/gemm/gemm_impl.h"
#include "kernels/cpu/gemm/unpack_any_impl.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// The weights of one group in the form that an FMA takes: 16 outputs of column k.
template <ElementFormat kElement>
struct FloatWeights {
  const uint16_t* halves;

  FloatWeights(const LinearBlock& block, int32_t tile, int32_t group)
      : halves(halves_at(block.weight + tile * block.tile_bytes) +
               int64_t{group} * kQuantGroup * kRowTile) {}

  [[gnu::always_inline]] V16 column(int k) const {
    const uint16_t* const at = halves + k * kRowTile;
    return kElement == ElementFormat::kBF16 ? load_bf16(at) : load_half(at);
  }

  // Prefetches the line that columns k and k + 1 share, at even k.
  [[gnu::always_inline]] void prefetch(int k, const Ahead& ahead) const {
    if (k % 2 != 0) return;
    prefetch_line(reinterpret_cast<const std::byte*>(halves + k * kRowTile), ahead);
  }

  static int64_t offset(int32_t group) {
    return int64_t{group} * kQuantGroup * kRowTile * static_cast<int64_t>(sizeof(uint16_t));
  }
};

// Stored as they are multiplied, a column to a line.
template <>
struct FloatWeights<ElementFormat::kF32> {
  const float* floats;

  FloatWeights(const LinearBlock& block, int32_t tile, int32_t group)
      : floats(reinterpret_cast<const float*>(block.weight + tile * block.tile_bytes) +
               int64_t{group} * kQuantGroup * kRowTile) {}

  [[gnu::always_inline]] V16 column(int k) const { return load(floats + k * kRowTile); }
  [[gnu::always_inline]] void prefetch(int k, const Ahead& ahead) const {
    prefetch_line(reinterpret_cast<const std::byte*>(floats + k * kRowTile), ahead);
  }
  static int64_t offset(int32_t group) {
    return int64_t{group} * kQuantGroup * kRowTile * static_cast<int64_t>(sizeof(float));
  }
};

// Weights of any other format, expanded to floats through a buffer.
struct ExpandedWeights {
  alignas(64) float buffer[kQuantGroup * kRowTile];
  const float* weights;

  ExpandedWeights(const LinearBlock& block, int32_t tile, int32_t group)
      : weights(expand_group(
            block.format, block.weight + tile * block.tile_bytes, group, buffer)) {}

  [[gnu::always_inline]] V16 column(int k) const { return load(weights + k * kRowTile); }
  [[gnu::always_inline]] void prefetch(int, const Ahead&) const {}
  static int64_t offset(int32_t) { return 0; }
};

// Adds one group to acc, which is laid out as in fold_segments. `x`: the group's columns of the
// first row; rows are `stride` elements apart.
template <int kTiles, int kRows, typename Weights>
SLUICE_INLINE void add_float_group(const Weights* weights,
                                   const Ahead& ahead,
                                   const float* x,
                                   int64_t stride,
                                   V16* acc) {
#pragma GCC unroll 4
  for (int k = 0; k < kQuantGroup; ++k) {
    V16 w[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      w[t] = weights[t].column(k);
      weights[t].prefetch(k, ahead);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V16 value = broadcast(x[r * stride + k]);
      for (int t = 0; t < kTiles; ++t) {
        acc[t * kRows + r] = fma(w[t], value, acc[t * kRows + r]);
      }
    }
  }
}

template <typename Weights>
struct FloatRows {
  static constexpr int32_t kRowsOfFourTiles = 0;  // two streams reach the limit
#if defined(SLUICE_ISA_AVX512)
  // The sums of two tiles fit the registers, and each value of a row that is read serves both.
  static constexpr int32_t kRowsOfTwoTiles = std::numeric_limits<int32_t>::max();
#else
  static constexpr int32_t kRowsOfTwoTiles = kRowsAtOnce;
#endif

  template <int kTiles, int kRows>
  static void run(const LinearBlock& block, int32_t tile, int64_t row) {
    const int64_t stride = int64_t{block.num_groups} * kQuantGroup;
    const float* const x = static_cast<const float*>(block.x) + row * stride;
    const AheadOfTiles<kTiles> tiles(block.tile_bytes);
    const auto add = [&](int32_t group, V16 * acc) __attribute__((always_inline)) {
      const int32_t at = block.first_group + group;
      const Ahead ahead = tiles.at(Weights::offset(at));
      const float* const columns = x + int64_t{group} * kQuantGroup;
      if constexpr (kTiles == 1) {
        const Weights w[] = {{block, tile, at}};
        add_float_group<1, kRows>(w, ahead, columns, stride, acc);
      } else {
        const Weights w[] = {{block, tile, at}, {block, tile + 1, at}};
        add_float_group<2, kRows>(w, ahead, columns, stride, acc);
      }
    };
    fold_segments<kTiles, kRows>(block, tile, row, add);
  }
};

static void linear_float(const LinearBlock& block) {
  bool are_floats = false;
  with_format(block.format, [&]<WeightFormat kFormat>() {
    if constexpr (kLayoutOf<kFormat>.is_float()) {
      linear_tiles<FloatRows<FloatWeights<kLayoutOf<kFormat>.element>>>(block);
      are_floats = true;
    }
  });
  if (!are_floats) linear_tiles<FloatRows<ExpandedWeights>>(block);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
