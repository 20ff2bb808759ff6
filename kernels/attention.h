// SPDX-License-Identifier: Apache-2.0
// Attention over the paged KV cache; prefill chunks and decodes are rows of one definition.
//
// Tree of one output row (absolute position p, one head): keys are cut at absolute positions into
// partitions of 512 and tiles of 64. Score s_j = (chain over d in order: acc = fma(q[d], k_j[d],
// acc)) * scale, soft-capped where asked, then fma(slope, |p - j|, s_j) where heads have slopes,
// then s_j + bias[j - p] where heads have a bias by place.
// Per tile, left to right: m' = max(m, max_j s_j), p_j = exp(s_j - m'), c = exp(m - m'),
// l = fma(l, c, sum_j p_j), o[d] = o[d] * c, then for j in order o[d] = fma(p_j, v_j[d], o[d]);
// only keys in [lo(p), hi(p)] take part: lo is the first visible key (visible_keys.h); hi is p, or,
// where keys after p are seen too, the last key of the request, or p + window - 1 where that is
// less.
// Sum over a tile: key j in lane j % 16, lanes add j = l, l + 16, l + 32, l + 48 in order, then
// fold by halves. Each partition starts fresh (m = lowest, l = 0, o = 0); partitions merge left to
// right: m' = max(m_a, m_b), x = x_a * exp(m_a - m') + x_b * exp(m_b - m') as
// fma(x_b, e_b, x_a * e_a) for l and each o[d]; tiles and partitions without a visible key are left
// out. A sink logit s joins last: m' = max(m, s), l = l * exp(m - m') + exp(s - m'),
// o[d] = o[d] * exp(m - m'). Output o[d] / l. exp and tanh are this library's
// (kernels/cpu/isa/math16.h). Cost is linear in the visible keys.
//
// An int8 or fp8 cache holds codes for k_j[d] and v_j[d], and for every key fp32 scales for K and
// V. The chain's result is multiplied by K's scale before anything else; p_j is multiplied by V's
// scale where it weighs v_j, not in the sum. fp8 codes are taken / 256, scales * 256 (both exact).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/device.h"
#include "kernels/visible_keys.h"

namespace sluice::kernels {

inline constexpr int32_t kAttentionPartition = 512;
inline constexpr int32_t kAttentionTile = 64;

// Elements that one cached head takes: head_dim, padded with zeros to whole vectors of 16.
constexpr int64_t cached_head_dim(int64_t head_dim) { return align_up(head_dim, 16); }

// Whether a cache of this type holds codes, with a scale for each token and head.
constexpr bool has_kv_scales(DType dtype) { return dtype == DType::kI8 || dtype == DType::kF8E4M3; }

// Bytes of K (or of V) of one head in one block, scales included.
constexpr int64_t kv_head_bytes(DType dtype, int64_t head_dim, int64_t block_size) {
  const int64_t scales = has_kv_scales(dtype) ? block_size * int64_t{sizeof(float)} : 0;
  return cached_head_dim(head_dim) * block_size * static_cast<int64_t>(dtype_bytes(dtype)) + scales;
}

// One layer's cache of one KV group. K is stored transposed inside a block so that a vector lane is
// a key: K [num_blocks][num_kv_heads][cached_head_dim][block_size], V [num_blocks][num_kv_heads]
// [block_size][cached_head_dim of V's width]. Scales, if any, are [block_size] floats after each
// head's codes in the block, so that copying a block copies all of it. Codes and scales are a
// function of the one row written (quant/kv_code.h). Slots never written hold zeros; attention
// itself uses no slot past a row's last visible key and no block outside its window, whatever they
// hold.
struct KvLayerView {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  DType dtype = DType::kBF16;  // kF32, kF16, kBF16, kI8, kF8E4M3; written to nearest even
  int32_t num_blocks = 0;
  int32_t block_size = 16;  // divides kAttentionTile; below 16 is correct but slow
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t value_dim = 0;  // of V's heads; 0: head_dim

  [[nodiscard]] constexpr int32_t value_width() const {
    return value_dim > 0 ? value_dim : head_dim;
  }
};

class RowSteps;  // row_steps.h

// The largest call that a workspace must be sufficient for.
struct AttentionLimits {
  int32_t num_tokens;
  int32_t num_reqs;
  int32_t seq_len;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;  // of K or V, the larger
  int32_t num_threads;
  DeviceType device = DeviceType::kCpu;
};

// Returns kUnsupported, naming what the device has, where attention has no heads of these sizes.
Expected<void> check_attention(DeviceType device, int32_t head_dim, int32_t value_dim);

// Bytes for the scratch of every worker and for partial results, which let few rows over a long
// context occupy every thread. Grows with threads * heads * seq_len / kAttentionPartition.
int64_t attention_workspace_bytes(const AttentionLimits& limits);

struct AttentionArgs {
  const float* q;  // [num_tokens, num_heads * head_dim], rotated
  int64_t q_stride;
  int32_t num_heads;  // a multiple of num_kv_heads
  KvLayerView kv;
  std::span<const int32_t> query_start_loc;  // [num_reqs + 1]
  std::span<const int32_t> seq_lens;         // [num_reqs]: KV length including this step's tokens
  int32_t num_tokens = 0;                    // sum of the query lengths; the CPU reads them itself
  int32_t max_seq_len = 0;                   // bound of seq_lens, likewise
  const int32_t* block_table;                // [num_reqs][block_table_stride]
  int32_t block_table_stride;
  float scale;                   // usually 1 / sqrt(head_dim)
  int32_t window = 0;            // first_visible_key(), as is_chunked
  // A token sees later keys too, whose rows all belong to this step. CPU only.
  bool sees_behind = false;
  // With sees_behind, [num_reqs] keys that a request's tokens see, the first ones; empty: all. A
  // window must leave each token one of them.
  std::span<const int32_t> num_seen = {};
  bool is_chunked = false;
  float soft_cap = 0;            // s = soft_cap * tanh(s / soft_cap); 0: off
  const float* sinks = nullptr;  // [num_heads] or null
  // [num_heads] What a score gains for each token of distance, at most 0; null: nothing.
  const float* slopes = nullptr;
  // What a score gains by its key's place: that of head h and a key d places after the row's own,
  // or -d before it, is place_bias[h * place_bias_stride + d]. Each head's can be read from its
  // request's first key to the end of the last one's vector of 16. Null: nothing. CPU only.
  const float* place_bias = nullptr;
  int64_t place_bias_stride = 0;
  float* out;                    // [num_tokens, num_heads * V's width]
  int64_t out_stride;
  std::span<std::byte> workspace;  // attention_workspace_bytes; 64-byte aligned
  const RowSteps* then = nullptr;  // run for each token once all its heads are done; null: nothing
};

void attention(const ExecContext& ctx, const AttentionArgs& args);

// The operands of a later attention() call, for attention_ahead().
struct AttentionAheadArgs {
  KvLayerView kv;
  int32_t num_heads = 0;
  std::span<const int32_t> query_start_loc;  // this and the fields below: as in that call
  std::span<const int32_t> seq_lens;
  const int32_t* block_table = nullptr;
  int32_t block_table_stride = 0;
  int32_t window = 0;
  bool is_chunked = false;
};

// Announces a later attention() call. Attention of a few rows a request reads for longer than it
// computes, linear layers of several rows compute for longer than they read: linear layers called
// in between bring K and V of such requests to the caches of the cores that will read them. Results
// do not depend on it; memory that args name must stay valid until that call. A GPU does nothing.
void attention_ahead(const ExecContext& ctx, const AttentionAheadArgs& args);

}  // namespace sluice::kernels
