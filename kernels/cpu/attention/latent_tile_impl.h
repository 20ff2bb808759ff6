// SPDX-License-Identifier: Apache-2.0
// Scores of one tile of latents; the definition is in kernels/latent_attention.h. Lanes are query
// rows instead of keys: the rows of all heads share each key, which is read as it lies in the
// cache, and a score's chain over the elements stays the same.
#pragma once

#include "kernels/cpu/attention/attention_tile_impl.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// The keys whose accumulators fit the registers, beside up to kLatentVectors vectors of rows.
#if defined(SLUICE_ISA_SCALAR)
constexpr int32_t kKeysTogether = 1;
constexpr int32_t kLatentVectors = 1;
#elif defined(SLUICE_ISA_AVX512)
constexpr int32_t kKeysTogether = 8;
constexpr int32_t kLatentVectors = 2;
#else
constexpr int32_t kKeysTogether = 4;
constexpr int32_t kLatentVectors = 1;
#endif

// A block's places in scratch memory, behind its running and merged outputs.
struct LatentScratch {
  float* queries;  // [latent + rope][kAttentionMaxRows]
  float* latents;  // [kTile][latent]
  float* ropes;    // [kTile][rope]
  float* scores;   // [kTile][kAttentionMaxRows]

  SLUICE_INLINE explicit LatentScratch(const QueryBlock& block) {
    const int64_t width = int64_t{block.head_dim} + block.rope_width;
    queries = block.scratch + kAttentionMaxRows * (kTile + 2 * int64_t{block.head_dim});
    latents = queries + width * kAttentionMaxRows;
    ropes = latents + int64_t{kTile} * block.head_dim;
    scores = ropes + int64_t{kTile} * block.rope_width;
  }
};

// Lays a block's queries out with a row in each lane; lanes without a row are zeros.
SLUICE_INLINE void transpose_queries(const QueryBlock& block, const float* const* q, float* out) {
  const int32_t width = block.head_dim + block.rope_dim;
  const int32_t lanes = (block.num_rows + 15) / 16 * 16;
  for (int32_t r = 0; r < lanes; ++r) {
    for (int32_t d = 0; d < width; ++d) {
      out[int64_t{d} * kAttentionMaxRows + r] = r < block.num_rows ? q[r][d] : 0.0F;
    }
  }
}

// Converts the keys [begin, end) of a tile to floats.
template <typename Load>
SLUICE_INLINE void convert_latents(const QueryBlock& block,
                                   int32_t tile_begin,
                                   KeyRange keys,
                                   const LatentScratch& scratch) {
  using Element = typename Load::Element;
  for (int32_t j = keys.begin; j < keys.end; ++j) {
    const int32_t key = tile_begin + j;
    const int64_t id = block.block_table[key / block.block_size];
    const int64_t slot = key % block.block_size;
    const auto* latent =
        reinterpret_cast<const Element*>(block.k + id * block.block_bytes) + slot * block.head_dim;
    const auto* rope = reinterpret_cast<const Element*>(block.v + id * block.v_block_bytes) +
                       slot * block.rope_width;
    float* const latent_out = scratch.latents + int64_t{j} * block.head_dim;
    float* const rope_out = scratch.ropes + int64_t{j} * block.rope_width;
    for (int32_t d = 0; d < block.head_dim; d += 16) {
      store(latent_out + d, Load::load16(latent + d));
    }
    for (int32_t d = 0; d < block.rope_width; d += 16) {
      store(rope_out + d, Load::load16(rope + d));
    }
  }
}

// Continues the chains of kKeys keys, whose rows are `stride` apart, over `width` elements.
template <int kKeys, int kVectors>
SLUICE_INLINE void chain_keys(const float* queries,
                              const float* keys,
                              int32_t stride,
                              int32_t width,
                              V16 (&acc)[kKeys][kVectors]) {
  for (int32_t d = 0; d < width; ++d) {
    V16 rows[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) rows[v] = load(queries + d * kAttentionMaxRows + 16 * v);
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) {
      const V16 key = broadcast(keys[j * int64_t{stride} + d]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) acc[j][v] = fma(rows[v], key, acc[j][v]);
    }
  }
}

// scratch.scores[key][16 v ...] for kKeys keys from `key` and kVectors vectors of rows from `v`.
template <int kKeys, int kVectors>
[[gnu::noinline]] static void score_latents(const QueryBlock& block,
                                            const LatentScratch& scratch,
                                            int32_t key,
                                            int32_t v) {
  V16 acc[kKeys][kVectors];
#pragma GCC unroll 8
  for (int j = 0; j < kKeys; ++j) {
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) acc[j][i] = zero();
  }
  const int32_t latent = block.head_dim;
  const float* const queries = scratch.queries + 16 * v;
  chain_keys<kKeys, kVectors>(
      queries, scratch.latents + int64_t{key} * latent, latent, latent, acc);
  chain_keys<kKeys, kVectors>(queries + int64_t{latent} * kAttentionMaxRows,
                              scratch.ropes + int64_t{key} * block.rope_width,
                              block.rope_width,
                              block.rope_dim,
                              acc);
#pragma GCC unroll 8
  for (int j = 0; j < kKeys; ++j) {
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) {
      store(scratch.scores + (key + j) * kAttentionMaxRows + 16 * (v + i), acc[j][i]);
    }
  }
}

template <int kVectors>
SLUICE_INLINE void score_latent_keys(const QueryBlock& block,
                                     const LatentScratch& scratch,
                                     KeyRange keys,
                                     int32_t v) {
  int32_t key = keys.begin;
  for (; key + kKeysTogether <= keys.end; key += kKeysTogether) {
    score_latents<kKeysTogether, kVectors>(block, scratch, key, v);
  }
  for (; key < keys.end; ++key) score_latents<1, kVectors>(block, scratch, key, v);
}

// A score whose weight is exactly 0, also where no key of a tile is chosen.
constexpr float kNotChosen = -__builtin_inff();

// The keys of a tile that row r of the block has chosen.
SLUICE_INLINE uint64_t chosen_in_tile(const QueryBlock& block, int32_t r, int32_t tile_begin) {
  if (block.chosen == nullptr) return ~uint64_t{0};
  const int64_t token = (block.row_begin + r) / block.group;
  return block.chosen[token * block.chosen_stride + tile_begin / kTile];
}

// Leaves the scores of the keys [begin, end) in out[row][key], and the tile's values in `tile`.
template <typename Load>
SLUICE_INLINE void score_latent_tile(const QueryBlock& block,
                                     int32_t tile_begin,
                                     KeyRange keys,
                                     float* out,
                                     TileView<float>* tile) {
  const LatentScratch scratch(block);
  convert_latents<Load>(block, tile_begin, keys, scratch);
  const int32_t vectors = (block.num_rows + 15) / 16;
  int32_t v = 0;
  for (; v + kLatentVectors <= vectors; v += kLatentVectors) {
    score_latent_keys<kLatentVectors>(block, scratch, keys, v);
  }
  if constexpr (kLatentVectors > 1) {
    for (; v < vectors; ++v) score_latent_keys<1>(block, scratch, keys, v);
  }
  for (int32_t r = 0; r < block.num_rows; ++r) {
    const uint64_t chosen = chosen_in_tile(block, r, tile_begin);
    for (int32_t j = keys.begin; j < keys.end; ++j) {
      out[r * kTile + j] = scratch.scores[j * kAttentionMaxRows + r];
    }
    if (chosen == ~uint64_t{0}) continue;
    for (int32_t j = keys.begin; j < keys.end; ++j) {
      if ((chosen >> j & 1) == 0) out[r * kTile + j] = kNotChosen;
    }
  }
  for (int32_t i = 0; i < kTileVectors; ++i) {
    tile->v[i] = scratch.latents + int64_t{16} * i * block.head_dim;
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
