// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe.h"

#include "engine/core/status.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/runtime.h"
#include "kernels/cpu/simd.h"

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
