// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm.h"

#include "engine/core/status.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/runtime.h"
#include "kernels/cpu/simd.h"

namespace sluice::kernels::cpu {

void rms_norm(const ExecContext& ctx, const RmsNormArgs& args) {
  DCHECK(args.out.k >= 1 && args.x_stride >= args.out.k);
  const SimdTable& simd = simd_table(ctx.isa);
  const auto rows = [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t row = begin; row < end; ++row) {
      simd.rms_norm_row(
          args.x + row * args.x_stride, args.weight, args.eps, quantized_row(args.out, row));
    }
  };
  ctx.pool->parallel_for_chunked(args.out.num_rows, rows_per_claim(args.out.num_rows), rows);
}

}  // namespace sluice::kernels::cpu
