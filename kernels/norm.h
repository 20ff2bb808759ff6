// SPDX-License-Identifier: Apache-2.0
// Norms of rows, fused with the quantization that follows them.
#pragma once

#include <cstdint>

#include "kernels/gemm.h"

namespace sluice::kernels {

// y[i] = (x[i] * r) * weight[i], r = 1 / sqrt(mean + eps), mean = sum(x^2) / n, per row.
// Tree of the sum: 16 lanes, lane l takes i = l, l + 16, ... by fma in order; lanes fold by halves
// (l += l + 8, then 4, 2, 1). Division and square root are IEEE single operations.
// With `subtracts_mean` (layer norm) x[i] - sum(x) / n takes the place of x[i], that sum by the
// same tree with additions, and bias[i], or 0, is added to each product.
// The result goes to `out` in its format (kFloat: plain rows).
struct RmsNormArgs {
  const float* x;  // [num_rows, n]
  int64_t x_stride;
  const float* weight;  // [n]
  float eps;
  Activations out;  // num_rows, k = n
  bool subtracts_mean = false;
  const float* bias = nullptr;  // [n] or null; with subtracts_mean only
};

void rms_norm(const ExecContext& ctx, const RmsNormArgs& args);

// The norm of RmsNormArgs over each of `num_heads` parts of a row: x[row, head * n + i], in place
// or to the same place of `out`, whose rows are as far apart.
struct HeadNormArgs {
  float* x;
  int64_t x_stride;
  int32_t num_rows;
  int32_t num_heads;
  int32_t n;
  const float* weight;  // [n], of the first head
  float eps;
  bool subtracts_mean = false;
  const float* bias = nullptr;
  float* out = nullptr;     // null: in place
  int64_t weight_step = 0;  // from one head's weights to the next one's; 0: all have the same
};

void head_norm(const ExecContext& ctx, const HeadNormArgs& args);

// Sums of squares of a row's heads, each by the tree of RmsNormArgs, for joined_norm(): out[row,
// first + h] of `whole` columns, zeros in the others, which are other ranks' heads.
struct HeadSquaresArgs {
  const float* x;  // [num_rows, num_heads * n]
  int64_t x_stride;
  int32_t num_rows;
  int32_t num_heads;
  int32_t n;
  float* out;
  int64_t out_stride;
  int32_t first;
  int32_t whole;
};

void head_squares(const ExecContext& ctx, const HeadSquaresArgs& args);

// The norm of all heads of a row as one, in place over those of this rank: x[i] = (x[i] * r) *
// weight[i], r = 1 / sqrt(S / (whole * n) + eps). S adds the heads' sums of squares in order, each
// the largest of the parts' by its bits.
struct JoinedNormArgs {
  float* x;  // [num_rows, num_heads * n]
  int64_t x_stride;
  int32_t num_rows;
  int32_t num_heads;
  int32_t n;
  const float* parts[kSegments];  // each [num_rows, whole] by head_squares(), of every rank
  int32_t num_parts;
  int64_t parts_stride;
  int32_t whole;
  const float* weight;  // [num_heads * n]
  float eps;
};

void joined_norm(const ExecContext& ctx, const JoinedNormArgs& args);

}  // namespace sluice::kernels
