// SPDX-License-Identifier: Apache-2.0
// One query's scores of keys, as latent_index.cpp hands it to the instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/core/types.h"
#include "kernels/cpu/attention/query_block.h"

namespace sluice::kernels::cpu {

struct IndexBlock {
  const float* queries;  // [head / 32][dim][32], zeros after the last head
  const float* weights;  // [heads up to a multiple of 32], likewise
  const std::byte* keys;
  const int32_t* block_table;
  int64_t block_bytes;
  DType dtype;
  int32_t block_size;
  int32_t dim;
  int32_t num_heads;
  int32_t num_keys;
  float* tile;    // [64][dim]
  float* scores;  // [num_keys]
};

constexpr int64_t index_heads(int64_t num_heads) {
  return (num_heads + kAttentionMaxRows - 1) / kAttentionMaxRows * kAttentionMaxRows;
}

}  // namespace sluice::kernels::cpu
