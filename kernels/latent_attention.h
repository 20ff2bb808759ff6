// SPDX-License-Identifier: Apache-2.0
// Latent attention (MLA): all heads read one cached vector a token, [c latent | r rotated], whose
// latent part is key and value at once. There is one definition for prompts and decodes, the
// absorbed one: a head's query is [W_UK^T q_nope | rotated q_rope] of c + r, its output a mix of
// latents, which W_UV turns into the head's values afterwards. Expanding keys and values of every
// head instead gives other bits, and costs decodes heads * (n + v) * c products for each key.
//
// The tree is that of kernels/attention.h with heads of c + r for keys and c for values: a score
// is one chain over the latent's c elements in order, then over the r rotated ones. A token that
// has chosen its keys (kernels/latent_index.h) attends to those as if nothing else were cached: the
// i-th of them in ascending order stands where position i does in the tree. So a choice of all keys
// gives the bits of dense attention, and a choice of k keys costs what a context of k tokens does,
// however far apart they lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/latent_index.h"
#include "kernels/moe.h"
#include "kernels/rope.h"

namespace sluice::kernels {

// One layer's cache of a latent group: latents [num_blocks][block_size][latent_dim] and rotated
// parts [num_blocks][block_size][cached_head_dim(rope_dim)], both in token order.
struct LatentKvView {
  std::byte* latent = nullptr;
  std::byte* rope = nullptr;
  DType dtype = DType::kBF16;  // kF32, kF16 or kBF16; written to nearest even
  int32_t num_blocks = 0;
  int32_t block_size = 16;  // divides kAttentionTile
  int32_t latent_dim = 0;   // a multiple of 32
  int32_t rope_dim = 0;     // even
};

// Returns kUnsupported where the device has no latent attention of such sizes.
Expected<void> check_latent_attention(DeviceType device, int32_t latent_dim, int32_t rope_dim);

// Rows of every head: that of a token begins at data + head * head_stride + token * stride.
struct HeadRows {
  float* data = nullptr;
  int64_t stride = 0;
  int64_t head_stride = 0;
};

// For each token: norms the latent (the tree of kernels/norm.h), rotates the key's shared part and
// the heads' by the table, caches latent and key, and lays the queries out by head, multiplied by
// the table's factor of their position, if it has any; without a table as they are. `nope` gets the
// unrotated n of each head, zeros up to a multiple of 32 after them; `query` gets the rotated r at
// column c. `heads` gets each head's rows of `nope`, for linear_experts with a matrix a head.
struct LatentRowsArgs {
  const float* q;  // [num_tokens, num_heads * (nope_dim + rope_dim)]
  int64_t q_stride;
  float* kv;  // [num_tokens, latent_dim + rope_dim]; normed and rotated in place
  int64_t kv_stride;
  int32_t num_heads;
  int32_t nope_dim;
  const float* norm;  // [latent_dim]
  float norm_eps;
  const RopeTable* table;                 // null: nothing rotates
  std::span<const int32_t> positions;     // [num_tokens]
  std::span<const int64_t> slot_mapping;  // [num_tokens]; below 0: the cache stays as it is
  LatentKvView cache;
  HeadRows nope;
  HeadRows query;
  ExpertRows heads = {};  // of num_heads; without pointers nothing is written
};

void latent_rows(const ExecContext& ctx, const LatentRowsArgs& args);

struct LatentAttentionArgs {
  HeadRows query;  // [num_heads][num_tokens][latent_dim + rope_dim]
  int32_t num_heads;
  LatentKvView cache;
  std::span<const int32_t> query_start_loc;  // this and the next six: as in AttentionArgs
  std::span<const int32_t> seq_lens;
  int32_t num_tokens = 0;  // this and the next: the CPU reads query_start_loc and seq_lens
  int32_t max_seq_len = 0;
  const int32_t* block_table;
  int32_t block_table_stride;
  float scale;  // positive
  ChosenKeys chosen = {};          // by token, at least one key of each
  int32_t most_chosen = 0;         // bound of a token's chosen keys; 0: nothing but its position
  HeadRows out;                    // [num_heads][num_tokens][latent_dim]
  std::span<std::byte> workspace;  // latent_workspace_bytes; 64-byte aligned
};

void latent_attention(const ExecContext& ctx, const LatentAttentionArgs& args);

// Returns how many of `seq_len` cached keys a token attends to at most.
inline int32_t most_keys(const LatentAttentionArgs& args, int32_t seq_len) {
  const bool is_bound = args.chosen.words != nullptr && args.most_chosen > 0;
  return is_bound ? std::min(seq_len, args.most_chosen) : seq_len;
}

// Returns usual attention's arguments with one KV head, whose K is the latents, of head_dim
// elements, and whose V is the rotated parts. What usual attention does not have is left out.
inline AttentionArgs as_one_head(const LatentAttentionArgs& args) {
  const LatentKvView& cache = args.cache;
  return {.q = args.query.data,
          .q_stride = args.query.stride,
          .num_heads = args.num_heads,
          .kv = {.k = cache.latent,
                 .v = cache.rope,
                 .dtype = cache.dtype,
                 .num_blocks = cache.num_blocks,
                 .block_size = cache.block_size,
                 .num_kv_heads = 1,
                 .head_dim = cache.latent_dim},
          .query_start_loc = args.query_start_loc,
          .seq_lens = args.seq_lens,
          .num_tokens = args.num_tokens,
          .max_seq_len = args.max_seq_len,
          .block_table = args.block_table,
          .block_table_stride = args.block_table_stride,
          .scale = args.scale,
          .out = args.out.data,
          .out_stride = args.out.stride,
          .workspace = args.workspace};
}

// Bytes of scratch memory for calls within these limits; head_dim is the latent's, num_kv_heads 1.
// Where tokens choose at most so many keys, that may be seq_len.
int64_t latent_workspace_bytes(const AttentionLimits& limits, int32_t rope_dim);

// out[token, head * width + i] = rows[head][token][i].
struct JoinHeadsArgs {
  HeadRows rows;
  int32_t num_tokens;
  int32_t num_heads;
  int32_t width;
  float* out;
  int64_t out_stride;
};

void join_heads(const ExecContext& ctx, const JoinHeadsArgs& args);

}  // namespace sluice::kernels
