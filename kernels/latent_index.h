// SPDX-License-Identifier: Apache-2.0
// Sparse latent attention (DeepSeek V3.2, GLM-5): an indexer with small heads of its own scores the
// keys of a sequence for each query, which then attends to the `top_k` best alone.
//
//   score(t, j) = sum over heads h of w_h(t) * max(0, q_h(t) . k(j)),   j <= t
//
// in fp32: each product is one chain over the elements in order; lane i of 16 adds the heads i,
// i + 16, ... in order, and the lanes fold by halves. The greatest scores are chosen, of equal ones
// the earlier positions; +0 and -0 are equal. A positive factor that all scores have changes no
// choice and is left out, as are the rotation by a Hadamard matrix and the FP8 codes of DeepSeek's
// own kernels: the rotation is orthogonal, and serves the codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/device.h"
#include "kernels/rope.h"

namespace sluice::kernels {

// Keys of one layer's indexer, [num_blocks][block_size][dim], in a latent group.
struct IndexKeyView {
  std::byte* data = nullptr;
  DType dtype = DType::kBF16;  // kF32, kF16 or kBF16
  int32_t block_size = 16;     // divides kAttentionTile
  int32_t dim = 0;             // a multiple of 32
};

// Returns kUnsupported where the device has no indexer of so many heads of so many elements.
Expected<void> check_indexer(DeviceType device, int32_t num_heads, int32_t dim);

// For each token: norms the key (mean and variance), rotates the first elements of it and of each
// head's query by the table in `style`, and caches the key.
struct IndexRowsArgs {
  float* q;  // [num_tokens, num_heads * dim]; rotated in place
  int64_t q_stride;
  float* k;  // [num_tokens, dim]; normed and rotated in place
  int64_t k_stride;
  int32_t num_heads;
  const float* norm_weight;  // [dim], as is the bias
  const float* norm_bias;
  float norm_eps;
  const RopeTable* table;  // at most dim / 2 pairs
  RopeStyle style;
  std::span<const int32_t> positions;     // [num_tokens]
  std::span<const int64_t> slot_mapping;  // [num_tokens]; below 0: the cache stays as it is
  IndexKeyView cache;
};

void index_rows(const ExecContext& ctx, const IndexRowsArgs& args);

// The keys of each token as bits: bit j % 64 of word j / 64 says whether position j is chosen.
struct ChosenKeys {
  uint64_t* words = nullptr;  // null: all keys
  int64_t stride = 0;         // words from token to token
};

struct ChooseKeysArgs {
  const float* q;  // [num_tokens, num_heads * dim]
  int64_t q_stride;
  const float* weights;  // [num_tokens, num_heads]
  int64_t weights_stride;
  int32_t num_heads;
  IndexKeyView cache;
  std::span<const int32_t> query_start_loc;  // this and the next five: as in AttentionArgs
  std::span<const int32_t> seq_lens;
  int32_t num_tokens = 0;  // this and the next: the CPU reads query_start_loc and seq_lens
  int32_t max_seq_len = 0;
  const int32_t* block_table;
  int32_t block_table_stride;
  int32_t top_k;
  ChosenKeys out;  // words up to each token's own are written
  std::span<std::byte> workspace;  // choose_keys_workspace_bytes; 64-byte aligned
};

void choose_keys(const ExecContext& ctx, const ChooseKeysArgs& args);

struct ChooseKeysLimits {
  int32_t seq_len = 0;
  int32_t num_heads = 0;
  int32_t dim = 0;
  int32_t num_threads = 1;
  int32_t num_tokens = 1;  // of a call
  DeviceType device = DeviceType::kCpu;
};

int64_t choose_keys_workspace_bytes(const ChooseKeysLimits& limits);

// Words of a token in sequences of at most this length.
constexpr int64_t chosen_words(int64_t seq_len) { return (seq_len + 63) / 64; }

}  // namespace sluice::kernels
