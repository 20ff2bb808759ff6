// SPDX-License-Identifier: Apache-2.0
// Layers that keep a state instead of every token: the short convolution and the gated delta rule.
// Both are defined token by token in float32, so chunks, batches, prefix hits and threads change no
// bit. The CPU backend alone has them: a loader refuses such layers elsewhere (check_recurrent).
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/device.h"

namespace sluice::kernels {

inline constexpr int32_t kMaxConvTaps = 8;
inline constexpr int32_t kMaxStateKeys = 256;  // of a head of the delta rule

// kUnsupported, with the reason, where the device has no such operators.
Expected<void> check_recurrent(DeviceType device);

// The rows of a step by request, and where their states lie: block b holds the floats
// [b * block_floats, (b + 1) * block_floats) of `states`. A request with the positions
// [begin, end) in this step reads the state after `begin` tokens from its table's entry
// (begin - 1) / tokens_per_entry, zeros for begin = 0, and leaves the state after position p in
// entry p / tokens_per_entry. Where two entries name two blocks, the earlier one keeps the state at
// its end: a snapshot. Entries that lie between are read only in this range.
struct StateTable {
  float* states;
  int64_t block_floats;
  std::span<const int32_t> query_start_loc;  // [num_reqs + 1]
  std::span<const int32_t> seq_lens;         // [num_reqs]: ends
  const int32_t* block_table;                // [num_reqs][block_table_stride]
  int32_t block_table_stride;
  int32_t tokens_per_entry;
};

// Depthwise causal convolution over time. For channel c and token t, with in = x, or in = gate_in *
// x: y = bias[c] (0 without one); y = fma(weight[i][c], in[t - taps + 1 + i][c], y) for i = 0 to
// taps - 1, the newest last; then y / (1 + exp(-y)) if `silu`, then gate_out * y if there is one.
// The state is in[t - taps + 2 .. t], oldest first: [taps - 1][n].
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
//   beta = 1 / (1 + exp(-b)); decay = exp(rate * softplus(a + dt_bias)),
//     softplus(x) = max(x, 0) + log(1 + exp(-|x|))
//   S[i][j] = decay * S[i][j];  m[j] = sum_i k'[i] * S[i][j];  d[j] = beta * (v[j] - m[j])
//   S[i][j] = fma(k'[i], d[j], S[i][j]);  out[j] = sum_i q'[i] * S[i][j]
// with exp and log of this library. Sums over i have 16 lanes: lane l takes i = l, l + 16, ... by
// fma in order; lanes fold by halves. The state is [num_value_heads][key_dim][value_dim].
struct DeltaRuleArgs {
  float* q;  // [num_rows, num_key_heads * key_dim]; overwritten, as k, b and a are
  float* k;
  const float* v;  // [num_rows, num_value_heads * value_dim]
  int64_t qkv_stride;
  float* b;  // [num_rows, num_value_heads]
  float* a;
  int64_t gate_stride;
  const float* rate;     // [num_value_heads], negative
  const float* dt_bias;  // [num_value_heads]
  std::span<const int32_t> key_heads;  // [num_value_heads], in host memory
  int32_t num_rows;
  int32_t num_key_heads;
  int32_t key_dim;    // a multiple of 16, at most kMaxStateKeys
  int32_t value_dim;  // a multiple of 16
  float scale;
  float eps = 1e-6F;
  float* out;  // [num_rows, num_value_heads * value_dim]
  int64_t out_stride;
  StateTable state;
};

void delta_rule(const ExecContext& ctx, const DeltaRuleArgs& args);

}  // namespace sluice::kernels
