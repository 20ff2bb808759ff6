// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: which experts a token goes to, their matrices over the rows each of them got,
// and how their outputs join.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/gemm.h"

namespace sluice::kernels {

// kUnsupported where the device has none of these operators.
Expected<void> check_experts(DeviceType device);

// The `top_k` largest logits of each row, equal ones by lower id; never drops a token. ids come out
// ascending. weight_j = exp(l_j - max) / sum, the sum over the chosen ones in order of id, or over
// all experts (16 lanes as in the norm's sum, then folded by halves).
struct MoeRouteArgs {
  const float* logits;  // [num_rows, num_experts]
  int32_t num_rows;
  int32_t num_experts;  // at most kMaxExperts
  int32_t top_k;        // at most num_experts
  bool normalize;       // sum over the chosen
  int32_t* ids;         // [num_rows, top_k]
  float* weights;       // [num_rows, top_k]
};

inline constexpr int32_t kMaxExperts = 1024;

void moe_route(const ExecContext& ctx, const MoeRouteArgs& args);

// One matrix of one expert.
struct ExpertMatrix {
  const PackedWeight* weight;
  const float* bias;  // [n] or null
  int64_t column;     // of the output, where its own begin
};

// out[row, column + n] = sum_k x[row, k] * W[n, k] (+ bias[n]) for each matrix of each expert over
// that expert's rows, in one fork and join; the tree of an element is that of gemm.h, so that the
// rows an expert happens to have do not show. Rows of no expert are left as they are.
struct LinearExpertsArgs {
  Activations x;                           // rows of all experts
  std::span<const ExpertMatrix> matrices;  // [all experts, matrices of each], all with x's k
  int32_t matrices_per_expert;
  std::span<const int32_t> experts;  // those with rows, each once
  const int32_t* first;  // [all experts] an expert's first row, the first of an activation block
  const int32_t* count;  // [all experts] its rows
  float* out;
  int64_t out_stride;
  Segments segments = {};  // as LinearArgs has them: then matrices have no bias
};

void linear_experts(const ExecContext& ctx, const LinearExpertsArgs& args);

// x[i, :] = fma(y[rows[i, j], :], scale * weights[i, j], x[i, :]) for j in order: by expert id.
struct MoeCombineArgs {
  const float* y;  // [.., n] outputs of the experts
  int64_t y_stride;
  const int32_t* rows;   // [num_rows, top_k]: where each token's outputs are in y
  const float* weights;  // [num_rows, top_k]
  int32_t num_rows;
  int32_t top_k;
  int32_t n;
  float scale = 1;
  float* x;
  int64_t x_stride;
};

void moe_combine(const ExecContext& ctx, const MoeCombineArgs& args);

}  // namespace sluice::kernels
