// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe.h"

#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice::kernels::cpu {

void moe_route(const ExecContext& ctx, const MoeRouteArgs& args) {
  DCHECK(args.top_k >= 1 && args.top_k <= args.num_experts && args.num_experts <= kMaxExperts);
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.num_rows, [&](int64_t row, int32_t) {
    simd.moe_route_row({.logits = args.logits + row * args.num_experts,
                        .num_experts = args.num_experts,
                        .top_k = args.top_k,
                        .normalize = args.normalize,
                        .ids = args.ids + row * args.top_k,
                        .weights = args.weights + row * args.top_k});
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
    for (int64_t j = row * args.top_k; j < (row + 1) * args.top_k; ++j) {
      simd.add_row(args.x + row * args.x_stride,
                   args.y + args.rows[j] * args.y_stride,
                   args.scale * args.weights[j],
                   args.n);
    }
  });
}

}  // namespace sluice::kernels::cpu
