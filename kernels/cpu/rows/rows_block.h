// SPDX-License-Identifier: Apache-2.0
// Row-wise work, as rope.cpp and elementwise.cpp hand it to the instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/core/types.h"
#include "quant/repack.h"

namespace sluice::kernels::cpu {

// What a norm does to a row (kernels/norm.h).
struct RowNorm {
  const float* weight;
  const float* bias;  // or null
  float eps;
  bool subtracts_mean;
};

// The heads of one token, to be rotated.
struct RopeRow {
  float* x;  // [num_heads][head_dim]
  const float* cos;
  const float* sin;
  int32_t num_heads;
  int32_t head_dim;
  int32_t num_pairs;
  bool halves;  // pairs (i, i + num_pairs), else (2 i, 2 i + 1)
};

// One token's K and V and their slot in the cache.
struct KvRow {
  const float* k;     // [num_kv_heads][width]
  const float* v;     // [num_kv_heads][value_width]
  std::byte* k_slot;  // element (d, slot) of head 0: the next d is block_size elements on
  std::byte* v_slot;  // row `slot` of head 0
  float* k_scale;     // head 0's at the slot; null: the cache has no scales
  float* v_scale;
  int64_t k_head_bytes;  // from one head to the next
  int64_t v_head_bytes;
  DType dtype;
  int32_t num_kv_heads;
  int32_t width;  // a head's in k
  int32_t value_width;
  int32_t block_size;
};

// One token's choice of experts.
struct MoeRow {
  const float* logits;
  int32_t num_experts;
  int32_t top_k;
  bool normalize;
  int32_t* ids;
  float* weights;
};

// One row of a packed embedding table.
struct EmbeddingRow {
  WeightFormat format;
  const std::byte* tile;  // the row's tile of 16
  int32_t row_in_tile;
  int32_t k;
  bool scaled;  // the row is multiplied by the scales at the tile's start
  float* out;
};

}  // namespace sluice::kernels::cpu
