// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: the choice of a token's experts, the experts' matrices over their rows, and
// the sum of their outputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "engine/core/status.h"
#include "kernels/device.h"
#include "kernels/gemm.h"

namespace sluice::kernels {

enum class RouterScore : uint8_t {
  kSoftmax,  // s_e = exp(l_e - max) / sum over all experts
  kSigmoid,  // s_e = 1 / (1 + exp(-l_e))
  // Each of the chosen ones, from the best on, is weighed among those that were not chosen before
  // it and whose logits are near its own m: with (m - l_e) / max(|l_e|, m) not above
  // Router::spread. Its weight is 1 over the sum of exp(l_e - m) over those.
  kOneByOne,
};

// What a group of experts is worth.
enum class GroupRule : uint8_t {
  kTwoBest,  // the sum of its two largest values: DeepSeek V3
  kBest,     // its largest value: DeepSeek V2
};

// How a router's logits l_e become a choice and weights.
struct Router {
  RouterScore score = RouterScore::kSoftmax;
  bool normalize = true;  // the chosen experts' weights sum to `scale`
  float epsilon = 0;      // added to the sum that normalizes, which is then at least `floor`
  float floor = 0;
  float scale = 1;
  float spread = 0;  // of kOneByOne, which does not normalize
  // Experts are in equal groups of consecutive ids, of which those worth most take part; 0: no
  // groups.
  int32_t num_groups = 0;
  int32_t groups_kept = 0;
  GroupRule group_rule = GroupRule::kTwoBest;
};

// Chooses the `top_k` experts of each row with the largest values, the lower id among equal ones;
// never drops a token. ids come out ascending. The value of an expert is its logit, or, where there
// is a choice bias b, there are groups or the score is a sigmoid: s_e, or s_e + b_e.
// weight_e = s_e, divided by max(sum + epsilon, floor) if `normalize`, times scale, then times the
// expert's own. Sums are over
// the chosen ones in order of id, or over all experts (16 lanes as in the norm's sum, then folded
// by halves). A softmax without a choice bias or groups normalizes exp(l_e - max) directly.
struct MoeRouteArgs {
  const float* logits;  // [num_rows, num_experts]
  int32_t num_rows;
  int32_t num_experts;  // at most kMaxExperts
  int32_t top_k;        // at most num_experts, and at most those in the groups kept
  Router router;
  const float* choice_bias = nullptr;    // [num_experts] or null
  const float* expert_scales = nullptr;  // likewise
  int32_t* ids;                        // [num_rows, top_k]
  float* weights;                      // [num_rows, top_k]
};

inline constexpr int32_t kMaxExperts = 1024;
inline constexpr int32_t kMaxExpertGroups = 32;

// Whether the choice compares logits, not scores.
constexpr bool chooses_by_logit(const MoeRouteArgs& args) {
  return args.router.score == RouterScore::kSoftmax && args.choice_bias == nullptr &&
         args.router.num_groups == 0;
}

void moe_route(const ExecContext& ctx, const MoeRouteArgs& args);

// The rows of each expert, in memory that operators read and write; the host need not know them. An
// expert's first row is the first of an activation block.
struct ExpertRows {
  int32_t num_experts = 0;
  int32_t* first = nullptr;       // [num_experts] row
  int32_t* count = nullptr;       // [num_experts] rows
  int32_t* chosen = nullptr;      // [num_experts] those with rows, ascending; the rest is kept
  int32_t* num_chosen = nullptr;  // [1]
};

// The most rows that `num_pairs` pairs take.
constexpr int32_t max_expert_rows(int32_t num_pairs, int32_t num_experts) {
  return num_pairs + std::min(num_pairs, num_experts) * (kActivationRows - 1);
}

// Gives each (token, choice) pair a row: by expert id, within an expert in order of pairs.
struct PlaceRowsArgs {
  const int32_t* ids;  // [num_pairs] experts
  int32_t num_pairs;
  int32_t* rows;  // [num_pairs]
  ExpertRows experts;
};

void place_rows(const ExecContext& ctx, const PlaceRowsArgs& args);

// One matrix of one expert.
struct ExpertMatrix {
  const PackedWeight* weight;  // null, on the CPU only: this expert has no product
  const float* bias;           // [n] or null
  int64_t column;         // first column of its outputs in `out`
};

// out[row, column + n] = sum_k x[row, k] * W[n, k] (+ bias[n]) for each matrix of each expert over
// that expert's rows, in one fork and join. The tree of an element is that of gemm.h, so that it
// does not depend on an expert's other rows. Rows of no expert are left unchanged. On a GPU the
// matrices and biases of consecutive experts are equally far apart, in the order in which
// WeightStore takes the experts.
struct LinearExpertsArgs {
  Activations x;                           // num_rows: a bound of the rows of all experts
  std::span<const ExpertMatrix> matrices;  // [all experts, matrices of each], all with x's k
  int32_t matrices_per_expert;
  ExpertRows rows;
  float* out;
  int64_t out_stride;
  Segments segments = {};  // LinearArgs has them; with some of them, matrices have no bias
};

void linear_experts(const ExecContext& ctx, const LinearExpertsArgs& args);

// join_parts() of partial_sums.h for the rows of every expert; rows of no expert stay unchanged.
struct JoinExpertPartsArgs {
  std::span<const float* const> parts;     // each [x.num_rows, n], the rows of all experts
  Activations x;                           // some of the columns; num_rows: a bound of the rows
  std::span<const ExpertMatrix> matrices;  // one of each expert; on a GPU equally far apart
  ExpertRows rows;
  float* out;
  int64_t out_stride;
};

void join_expert_parts(const ExecContext& ctx, const JoinExpertPartsArgs& args);

// x[i, :] = fma(y[rows[i, j], :], weights[i, j], x[i, :]) for j in order, by expert id; without
// `adds`, x starts at 0.
struct MoeCombineArgs {
  const float* y;  // [.., n] outputs of the experts
  int64_t y_stride;
  const int32_t* rows;   // [num_rows, top_k]: rows of y with each token's outputs
  const float* weights;  // [num_rows, top_k]
  int32_t num_rows;
  int32_t top_k;
  int32_t n;
  bool adds = true;
  float* x;
  int64_t x_stride;
};

void moe_combine(const ExecContext& ctx, const MoeCombineArgs& args);

}  // namespace sluice::kernels
