// SPDX-License-Identifier: Apache-2.0
// One tile of attention work, as attention.cpp hands it to the instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/core/types.h"
#include "kernels/visible_keys.h"

namespace sluice::kernels::cpu {

inline constexpr int32_t kAttentionMaxRows = 32;

// Query rows of one request that share one KV head. Row r is query head r % group of the request's
// token r / group; rows [row_begin, row_begin + num_rows) are computed over the partitions
// [partition_begin, partition_end).
struct QueryBlock {
  const float* q;  // the request's first token, the group's first head
  int64_t q_stride;
  int64_t q_head_stride;
  float* out;  // likewise
  int64_t out_stride;
  int64_t out_head_stride;
  const std::byte* k;          // K of the KV head in block 0, or latents
  const std::byte* v;          // or the rotated parts of latent attention
  int64_t block_bytes;         // from one block of K to the next
  int64_t v_block_bytes;       // likewise in `v`
  const int32_t* block_table;  // the request's
  const float* sinks;          // from the group's first head on, or null
  const float* slopes;         // likewise
  const float* place_bias;     // likewise, for a row's own key
  int64_t place_bias_stride;   // from head to head
  const uint64_t* chosen;      // its first token's keys; null: all. A block then has one token
  int64_t chosen_stride;       // from token to token
  float* scratch;              // attention_scratch_floats(), of this worker
  float* partials;  // [partition - partition_base][row][value_dim + 2], or null: rows are finished
  DType dtype;
  int32_t block_size;
  int32_t width;        // a head's in q
  int32_t value_width;  // and in out
  int32_t rope_dim;     // what a query of latent attention has beyond `width`; 0: usual attention
  int32_t rope_width;   // its elements in the cache: cached_head_dim(rope_dim)
  int32_t head_dim;     // a head's in K: cached_head_dim(width)
  int32_t value_dim;    // in V and everywhere else: cached_head_dim(value_width)
  int32_t first_token;  // index of the request's first token in the call
  int32_t group;
  int32_t row_begin;
  int32_t num_rows;        // <= kAttentionMaxRows
  int32_t first_position;  // position of the request's first token in this step
  int32_t partition_base;  // first partition of the request that holds a visible key
  int32_t partition_begin;
  int32_t partition_end;
  int32_t rows_per_request;  // second extent of `partials`
  float scale;
  int32_t window;
  bool is_chunked;
  float soft_cap;
  int32_t keys_behind;  // one past the last key where rows see keys after them; 0: they do not

  // The bias by place of a row for this key and those after it.
  [[nodiscard]] const float* place_bias_of(int32_t row, int32_t key) const {
    const int32_t head = (row_begin + row) % group;
    const int32_t own = first_position + (row_begin + row) / group;
    return place_bias + head * place_bias_stride + (key - own);
  }
};

// Floats for scores, the running partition's output, the merged output, one tile of K and one of V.
constexpr int64_t attention_scratch_floats(int64_t head_dim, int64_t value_dim) {
  return kAttentionMaxRows * (64 + 2 * value_dim) + 64 * (head_dim + value_dim);
}

// Elements of all keys of a tile that are turned at once: 16 KiB.
constexpr int32_t kLatentElements = 64;

// Floats of latent attention: scores, outputs, turned elements and values of a tile, and a
// partition's chosen positions.
constexpr int64_t latent_scratch_floats(int64_t latent_dim) {
  return kAttentionMaxRows * (64 + 2 * latent_dim) + 64 * (kLatentElements + latent_dim) + 512;
}

// Returns one past the last key that a row at `position` sees; `keys_behind`: as in QueryBlock.
[[gnu::always_inline]] constexpr int32_t end_of_visible_keys(int32_t position,
                                                             int32_t window,
                                                             int32_t keys_behind) {
  if (keys_behind == 0) return position + 1;
  return window > 0 && position + window < keys_behind ? position + window : keys_behind;
}

}  // namespace sluice::kernels::cpu
