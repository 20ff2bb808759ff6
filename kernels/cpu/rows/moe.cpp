// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice::kernels::cpu {
namespace {

constexpr int32_t kLanes = 16;
static_assert(kMaxExperts % kLanes == 0);

using ExpertFloats = std::array<float, kMaxExperts>;

// The expert with the largest value that is not taken. The strict comparison keeps the lower id,
// and a NaN met first is taken, so that the search always finds one.
int32_t best_expert(const float* values, int32_t num_experts, const bool* taken) {
  int32_t best = -1;
  for (int32_t id = 0; id < num_experts; ++id) {
    if (!taken[id] && (best < 0 || values[id] > values[best])) best = id;
  }
  return best;
}

// The sum in 16 lanes, folded by halves.
float sum_in_lanes(const ExpertFloats& values, int32_t num_experts) {
  std::array<float, kLanes> lanes{};
  for (int32_t i = 0; i < num_experts; ++i) {
    lanes[static_cast<size_t>(i % kLanes)] += values[static_cast<size_t>(i)];
  }
  for (size_t half = kLanes / 2; half >= 1; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Routes one row whose choice compares scores.
class ScoreRow {
 public:
  ScoreRow(const SimdTable& simd, const MoeRouteArgs& args, int64_t row)
      : args_(args),
        num_experts_(args.num_experts),
        logits_(args.logits + row * args.num_experts),
        ids_(args.ids + row * args.top_k),
        weights_(args.weights + row * args.top_k) {
    score(simd);
    for (int32_t e = 0; e < num_experts_; ++e) {
      const auto at = static_cast<size_t>(e);
      values_[at] = args.choice_bias == nullptr ? scores_[at] : scores_[at] + args.choice_bias[e];
    }
    if (args.router.num_groups > 0) drop_groups();
    choose();
    weigh();
  }

 private:
  void score(const SimdTable& simd) {
    const bool is_softmax = args_.router.score == RouterScore::kSoftmax;
    const std::array<bool, kMaxExperts> none{};
    const float top = is_softmax ? logits_[best_expert(logits_, num_experts_, none.data())] : 0;
    ExpertFloats powers{};
    for (int32_t e = 0; e < num_experts_; ++e) {
      powers[static_cast<size_t>(e)] = is_softmax ? logits_[e] - top : 0.0F - logits_[e];
    }
    simd.map(MathFunction::kExp, powers.data(), num_experts_, powers.data());
    const float sum = is_softmax ? sum_in_lanes(powers, num_experts_) : 0;
    for (int32_t e = 0; e < num_experts_; ++e) {
      const auto at = static_cast<size_t>(e);
      scores_[at] = is_softmax ? powers[at] / sum : 1.0F / (1.0F + powers[at]);
    }
  }

  // Takes the groups that are worth least out of the choice.
  void drop_groups() {
    constexpr float kLeast = -std::numeric_limits<float>::infinity();
    const int32_t num_groups = args_.router.num_groups;
    const int32_t size = num_experts_ / num_groups;
    std::array<float, kMaxExpertGroups> sums{};
    for (int32_t g = 0; g < num_groups; ++g) {
      float first = kLeast;
      float second = kLeast;
      for (int32_t e = g * size; e < (g + 1) * size; ++e) {
        const float value = values_[static_cast<size_t>(e)];
        if (value > first) {
          second = first;
          first = value;
        } else if (value > second) {
          second = value;
        }
      }
      const bool is_sum = args_.router.group_rule == GroupRule::kTwoBest;
      sums[static_cast<size_t>(g)] = is_sum ? first + second : first;
    }
    for (int32_t g = 0; g < num_groups; ++g) {
      const float own = sums[static_cast<size_t>(g)];
      int32_t num_better = 0;
      for (int32_t h = 0; h < num_groups; ++h) {
        const float other = sums[static_cast<size_t>(h)];
        num_better += other > own || (other == own && h < g) ? 1 : 0;
      }
      if (num_better < args_.router.groups_kept) continue;
      std::fill_n(values_.begin() + g * size, size, kLeast);
    }
  }

  void choose() {
    std::array<bool, kMaxExperts> taken{};
    for (int32_t j = 0; j < args_.top_k; ++j) {
      taken[static_cast<size_t>(best_expert(values_.data(), num_experts_, taken.data()))] = true;
    }
    int32_t place = 0;
    for (int32_t e = 0; e < num_experts_; ++e) {
      if (taken[static_cast<size_t>(e)]) ids_[place++] = e;
    }
  }

  void weigh() const {
    const Router& router = args_.router;
    float sum = 0;
    for (int32_t j = 0; j < args_.top_k; ++j) {
      weights_[j] = scores_[static_cast<size_t>(ids_[j])];
      sum += weights_[j];
    }
    sum += router.epsilon;
    const float divisor = !router.normalize ? 1 : sum < router.floor ? router.floor : sum;
    for (int32_t j = 0; j < args_.top_k; ++j) weights_[j] = weights_[j] / divisor * router.scale;
  }

  const MoeRouteArgs& args_;
  int32_t num_experts_;
  const float* logits_;
  int32_t* ids_;
  float* weights_;
  ExpertFloats scores_;
  ExpertFloats values_;  // what the choice compares
};

// RouterScore::kOneByOne. Weights follow their experts into the order of ids.
void route_one_by_one(const SimdTable& simd, const MoeRouteArgs& args, int64_t row) {
  const float* const logits = args.logits + row * args.num_experts;
  std::array<bool, kMaxExperts> taken{};
  ExpertFloats weights{};
  for (int32_t j = 0; j < args.top_k; ++j) {
    const int32_t best = best_expert(logits, args.num_experts, taken.data());
    const float top = logits[best];
    ExpertFloats powers{};
    std::array<bool, kMaxExperts> are_near{};
    for (int32_t e = 0; e < args.num_experts; ++e) {
      const auto at = static_cast<size_t>(e);
      const bool is_far = (top - logits[e]) / std::max(std::fabs(logits[e]), top) >
                          args.router.spread;
      are_near[at] = !taken[at] && !is_far;
      powers[at] = logits[e] - top;
    }
    simd.map(MathFunction::kExp, powers.data(), args.num_experts, powers.data());
    for (size_t at = 0; at < powers.size(); ++at) powers[at] = are_near[at] ? powers[at] : 0;
    taken[static_cast<size_t>(best)] = true;
    weights[static_cast<size_t>(best)] =
        1.0F / sum_in_lanes(powers, args.num_experts) * args.router.scale;
  }
  int64_t place = row * args.top_k;
  for (int32_t e = 0; e < args.num_experts; ++e) {
    if (!taken[static_cast<size_t>(e)]) continue;
    args.ids[place] = e;
    args.weights[place++] = weights[static_cast<size_t>(e)];
  }
}

void route_row(const SimdTable& simd, const MoeRouteArgs& args, int64_t row) {
  if (args.router.score == RouterScore::kOneByOne) return route_one_by_one(simd, args, row);
  if (!chooses_by_logit(args)) {
    ScoreRow(simd, args, row);
    return;
  }
  float* const weights = args.weights + row * args.top_k;
  simd.moe_route_row({.logits = args.logits + row * args.num_experts,
                      .num_experts = args.num_experts,
                      .top_k = args.top_k,
                      .normalize = args.router.normalize,
                      .ids = args.ids + row * args.top_k,
                      .weights = weights});
  for (int32_t j = 0; j < args.top_k; ++j) weights[j] *= args.router.scale;
}

}  // namespace

void moe_route(const ExecContext& ctx, const MoeRouteArgs& args) {
  DCHECK(args.top_k >= 1 && args.top_k <= args.num_experts && args.num_experts <= kMaxExperts);
  DCHECK(args.router.num_groups <= kMaxExpertGroups);
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.num_rows, [&](int64_t row, int32_t) {
    route_row(simd, args, row);
    if (args.expert_scales == nullptr) return;
    for (int64_t j = row * args.top_k; j < (row + 1) * args.top_k; ++j) {
      args.weights[j] *= args.expert_scales[args.ids[j]];
    }
  });
}

void place_rows(const ExecContext&, const PlaceRowsArgs& args) {
  const ExpertRows& experts = args.experts;
  std::fill_n(experts.count, experts.num_experts, 0);
  for (int32_t i = 0; i < args.num_pairs; ++i) ++experts.count[args.ids[i]];
  int32_t num_rows = 0;
  int32_t num_chosen = 0;
  for (int32_t e = 0; e < experts.num_experts; ++e) {
    experts.first[e] = num_rows;
    if (experts.count[e] > 0) experts.chosen[num_chosen++] = e;
    num_rows += static_cast<int32_t>(align_up(experts.count[e], kActivationRows));
    experts.count[e] = 0;
  }
  *experts.num_chosen = num_chosen;
  for (int32_t i = 0; i < args.num_pairs; ++i) {
    const int32_t expert = args.ids[i];
    args.rows[i] = experts.first[expert] + experts.count[expert]++;
  }
}

void moe_combine(const ExecContext& ctx, const MoeCombineArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.num_rows, [&](int64_t row, int32_t) {
    float* const x = args.x + row * args.x_stride;
    if (!args.adds) std::fill_n(x, args.n, 0.0F);
    for (int64_t j = row * args.top_k; j < (row + 1) * args.top_k; ++j) {
      simd.add_row(x, args.y + args.rows[j] * args.y_stride, args.weights[j], args.n);
    }
  });
}

}  // namespace sluice::kernels::cpu
