// SPDX-License-Identifier: Apache-2.0
// Scores of keys by an indexer; the definition is in kernels/latent_index.h. Lanes are heads, which
// share each key.
#pragma once

#include "kernels/cpu/attention/attention_tile_impl.h"
#include "kernels/cpu/attention/index_block.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// The keys whose accumulators fit the registers.
#if defined(SLUICE_ISA_SCALAR)
constexpr int32_t kKeysTogether = 1;
#elif defined(SLUICE_ISA_AVX512)
constexpr int32_t kKeysTogether = 8;
#else
constexpr int32_t kKeysTogether = 4;
#endif

// Scores kKeys keys of the converted tile.
template <int kKeys>
[[gnu::noinline]] static void score_index_keys(const IndexBlock& block, int32_t key, float* out) {
  V16 total[kKeys];
#pragma GCC unroll 8
  for (int j = 0; j < kKeys; ++j) total[j] = zero();
  const float* const keys = block.tile + int64_t{key} * block.dim;
  for (int32_t head = 0; head < block.num_heads; head += 16) {
    V16 acc[kKeys];
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) acc[j] = zero();
    const int32_t group = head / kAttentionMaxRows;
    const float* const queries =
        block.queries + int64_t{group} * block.dim * kAttentionMaxRows + head % kAttentionMaxRows;
    for (int32_t d = 0; d < block.dim; ++d) {
      const V16 heads = load(queries + d * kAttentionMaxRows);
#pragma GCC unroll 8
      for (int j = 0; j < kKeys; ++j) {
        acc[j] = fma(heads, broadcast(keys[j * int64_t{block.dim} + d]), acc[j]);
      }
    }
    const V16 weights = load(block.weights + head);
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) {
      total[j] = fma(weights, max(zero(), acc[j]), total[j]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kKeys; ++j) out[j] = fold_by_halves(total[j]);
}

template <typename Load>
SLUICE_INLINE void score_index(const IndexBlock& block) {
  using Element = typename Load::Element;
  for (int32_t first = 0; first < block.num_keys; first += kTile) {
    const int32_t left = block.num_keys - first;
    const int32_t count = left < kTile ? left : kTile;
    for (int32_t j = 0; j < count; ++j) {
      const int64_t id = block.block_table[(first + j) / block.block_size];
      const int64_t slot = (first + j) % block.block_size;
      const auto* const key =
          reinterpret_cast<const Element*>(block.keys + id * block.block_bytes) + slot * block.dim;
      float* const out = block.tile + int64_t{j} * block.dim;
      for (int32_t d = 0; d < block.dim; d += 16) store(out + d, Load::load16(key + d));
    }
    int32_t j = 0;
    for (; j + kKeysTogether <= count; j += kKeysTogether) {
      score_index_keys<kKeysTogether>(block, j, block.scores + first + j);
    }
    for (; j < count; ++j) score_index_keys<1>(block, j, block.scores + first + j);
  }
}

static void index_block(const IndexBlock& block) {
  switch (block.dtype) {
    case DType::kF32:
      return score_index<LoadF32>(block);
    case DType::kF16:
      return score_index<LoadF16>(block);
    default:
      return score_index<LoadBF16>(block);
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
