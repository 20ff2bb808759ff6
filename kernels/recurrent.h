// SPDX-License-Identifier: Apache-2.0
// Layers that keep a state instead of every token: the short convolution, the gated delta rule and
// Mamba-2. All are defined token by token in float32, so chunks, batches, prefix hits and threads
// change no bit.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/types.h"
#include "kernels/device.h"
#include "kernels/gemm.h"

namespace sluice::kernels {

inline constexpr int32_t kStateLanes = 16;  // channels or columns side by side in a state
inline constexpr int32_t kMaxConvTaps = 8;
inline constexpr int32_t kMaxStateKeys = 256;  // of a head: the rows of its state

// The rows of a step by request, and where their states lie: block b holds the floats
// [b * block_floats, (b + 1) * block_floats) of `states`. A request with the positions
// [begin, end) in this step reads the state after `begin` tokens from its table's entry
// (begin - 1) / tokens_per_entry, zeros for begin = 0, and leaves the state after position p in
// entry p / tokens_per_entry. Where two entries name two blocks, the earlier one keeps the state at
// its end: a snapshot. Entries that lie between are read only in this range.
// States do not take the last `num_drafts` rows, which may be rejected: the state after the row in
// front of them is left. A later step finds accepted ones as rows that it replays: with n of them,
// after the rows of all requests, a request reads the state after begin - n tokens.
struct StateTable {
  float* states;
  int64_t block_floats;
  std::span<const int32_t> query_start_loc;  // [num_reqs + 1]
  std::span<const int32_t> seq_lens;         // [num_reqs]: ends
  const int32_t* block_table;                // [num_reqs][block_table_stride]
  int32_t block_table_stride;
  int32_t tokens_per_entry;
  std::span<const int32_t> replay_start_loc = {};  // [num_reqs + 1], of replayed rows; empty: none
  std::span<const int32_t> num_drafts = {};        // [num_reqs]; empty: none
};

// Makes the rows that requests replay: puts those that the last step with drafts kept after the
// rows of this step, then keeps this step's drafts in the block of the state that is left. Before
// any operator that writes rows in place. A block has [most drafts][width] floats, of two ranges of
// columns side by side.
struct ReplayRowsArgs {
  struct Columns {
    int32_t first;
    int32_t count;
  };

  float* rows;  // [num_rows + replayed rows]
  int64_t row_stride;
  Columns columns[2];
  StateTable kept;
};

void replay_rows(const ExecContext& ctx, const ReplayRowsArgs& args);

// Depthwise causal convolution over time. For channel c and token t, with in = x, or in = gate_in *
// x: y = bias[c] (0 without one); y = fma(weight[i][c], in[t - taps + 1 + i][c], y) for i = 0 to
// taps - 1, the newest last; then y / (1 + exp(-y)) if `silu`, then gate_out * y if there is one.
// The state is in[t - taps + 2 .. t], oldest first: [n / 16][taps - 1][16].
struct ShortConvArgs {
  const float* x;  // [num_rows, n]
  const float* gate_in = nullptr;
  const float* gate_out = nullptr;
  int64_t x_stride;  // of these three; elements
  float* out;        // [num_rows, n]; may be x
  int64_t out_stride;
  int32_t n;            // a multiple of 16
  int32_t taps;         // 2 to kMaxConvTaps
  const float* weight;  // [taps][n]
  const float* bias = nullptr;
  bool silu = false;
  StateTable state;
};

void short_conv(const ExecContext& ctx, const ShortConvArgs& args);

// The gated delta rule, for each value head h with its key head k = key_heads[h]. Per token:
//   q' = (q * r) * scale, k' = k * r; r = 1 / sqrt(sum(x^2) + eps), summed as in kernels/norm.h
//   beta = beta_scale * (1 / (1 + exp(-b))); decay = exp(rate * softplus(a + dt_bias)),
//     softplus(x) = max(x, 0) + log(1 + exp(-|x|)); where channels decay apart, each row i of S has
//     an a, a dt_bias and a decay of its own
//   S[i][j] = decay * S[i][j];  m[j] = sum_i k'[i] * S[i][j];  d[j] = beta * (v[j] - m[j])
//   S[i][j] = fma(k'[i], d[j], S[i][j]);  out[j] = sum_i q'[i] * S[i][j]
// with exp and log of this library. Sums over i have 16 lanes: lane l takes i = l, l + 16, ... by
// fma in order; lanes fold by halves. The state is [num_value_heads][value_dim / 16][key_dim][16].
struct DeltaRuleArgs {
  float* q;  // [num_rows, num_key_heads * key_dim]; overwritten, as k, b and a are
  float* k;
  const float* v;  // [num_rows, num_value_heads * value_dim]
  int64_t qkv_stride;
  float* b;  // [num_rows, num_value_heads]
  float* a;  // [num_rows, num_value_heads], or [num_rows, num_value_heads * key_dim]
  int64_t gate_stride;
  const float* rate;     // [num_value_heads], negative
  const float* dt_bias;  // as a row of a
  bool decays_channels = false;
  std::span<const int32_t> key_heads;  // [num_value_heads]
  int32_t num_rows;                    // replayed ones included
  int32_t num_key_heads;
  int32_t key_dim;    // a multiple of 16, at most kMaxStateKeys
  int32_t value_dim;  // a multiple of 16
  float scale;
  float beta_scale = 1;
  float eps = 1e-6F;
  float* out;  // [num_rows, num_value_heads * value_dim]
  int64_t out_stride;
  StateTable state;
};

void delta_rule(const ExecContext& ctx, const DeltaRuleArgs& args);

// Mamba-2, for each head h of group g = h / (num_heads / num_groups). Per token:
//   t = min(max(softplus(dt + dt_bias), min_step), max_step);  decay = exp(rate * t)
//   S[n][p] = fma(B[n], t * x[p], decay * S[n][p])
//   out[p] = fma(skip, x[p], sum_n C[n] * S[n][p])
// with softplus and the tree of sums as in the delta rule. The steps are clamped in prompts and
// answers alike. The state is [num_heads][head_dim / 16][state_dim][16].
struct Mamba2Args {
  const float* x;  // [num_rows, num_heads * head_dim]
  const float* b;  // [num_rows, num_groups * state_dim]
  const float* c;
  int64_t row_stride;    // of these three
  float* dt;             // [num_rows, num_heads]; overwritten by t
  float* decay;          // [num_rows, num_heads]; written
  int64_t step_stride;   // of these two
  const float* rate;     // [num_heads], negative
  const float* dt_bias;  // [num_heads]
  const float* skip;     // [num_heads]
  float min_step;
  float max_step;     // may be infinite
  int32_t num_rows;   // replayed ones included
  int32_t num_heads;  // a multiple of the groups
  int32_t num_groups;
  int32_t state_dim;  // a multiple of 16, at most kMaxStateKeys
  int32_t head_dim;   // a multiple of 16
  float* out;         // [num_rows, num_heads * head_dim]
  int64_t out_stride;
  StateTable state;
};

void mamba2(const ExecContext& ctx, const Mamba2Args& args);

// The gate g / (1 + exp(-g)) times a row of x, in place, and the sums of squares of its heads, each
// by the tree of RmsNormArgs (kernels/norm.h): sums[row, first + h] of `whole` columns, zeros in
// the others, which are other ranks' heads. Rows of x have room for their width rounded up to 32;
// what is beyond the width is overwritten.
struct GatedSquaresArgs {
  float* x;  // [num_rows, num_heads * n]
  int64_t x_stride;
  const float* gate;  // [num_rows, num_heads * n]
  int64_t gate_stride;
  int32_t num_rows;
  int32_t num_heads;
  int32_t n;
  float* sums;  // [num_rows, whole]
  int32_t first;
  int32_t whole;
};

void gated_squares(const ExecContext& ctx, const GatedSquaresArgs& args);

// The norm of each group of heads, in place over those of this rank: x[i] = (x[i] * r) * weight[i],
// r = 1 / sqrt(S / (heads of a group * n) + eps). S adds the sums of the group's heads in order,
// each the largest of the parts' by its bits.
struct GroupNormArgs {
  float* x;  // [num_rows, num_heads * n]
  int64_t x_stride;
  int32_t num_rows;
  int32_t num_heads;
  int32_t n;
  const float* parts[kSegments];  // each [num_rows, whole] by gated_squares(), of every rank
  int32_t num_parts;
  int32_t first;  // of this rank's heads
  int32_t whole;  // heads, a multiple of the groups
  int32_t num_groups;
  const float* weight;  // [num_heads * n]
  float eps;
};

void group_norm(const ExecContext& ctx, const GroupNormArgs& args);

}  // namespace sluice::kernels
