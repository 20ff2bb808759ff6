// SPDX-License-Identifier: Apache-2.0
// The rotation of kernels/rope.h by warps, each with one head of one token. Slots and positions,
// which were uploaded for the step, are read before wait_for_launches: no launch of the step writes
// them, and the first one, the embedding, does not overlap.
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rope_rows.h"

namespace sluice::kernels::cuda {

namespace ptx = gpu::ptx;

namespace {

template <DType kType>
__global__ void __launch_bounds__(32 * kRopeHeads, 1)
    rope_write_kv_kernel(const __grid_constant__ RopeWork work) {
  GPU_DYN_SHARED_ARRAY(float, staged);
  GPU_SHARED(float, factors, kRopeHeads);
  const RopeWriteKvArgs& args = work.args;
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const int64_t token = blockIdx.x;
  ptx::start_next_launch();
  const Rotation rotation = rotation_of(work, token);
  ptx::wait_for_launches();
  const int32_t index = static_cast<int32_t>(blockIdx.y) * kRopeHeads + warp;
  if (index >= rope_heads(args) || rotation.slot < 0) return;
  const RopeHead head = rope_head_at(args, index);
  const bool rotates = work.rows.cos != nullptr && head.kind != HeadKind::kV;
  const bool norms = args.q_norm != nullptr && head.kind != HeadKind::kV;
  if (head.kind == HeadKind::kQ && !rotates && !norms) return;
  const float* const x = values_of(args, token, head);
  float* const own = staged + warp * args.kv.head_dim;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll 4
  for (int32_t d = lane; d < width_of(args.kv, head); d += 32) own[d] = x[d];
  __syncwarp();
  if (rotates) rotate(own, work.rows, rotation);
  if (norms) {
    const float* const weight = head.kind == HeadKind::kQ ? args.q_norm : args.k_norm;
    norm_head(own, args.kv.head_dim, weight, args.norm_eps, factors + warp);
  }
  if (rotates || norms) {
    const float scale = head.kind == HeadKind::kQ ? rotation.query_scale : 1.0F;
    auto* const out = const_cast<float*>(x);  // q or k
#pragma unroll 4
    for (int32_t d = lane; d < args.kv.head_dim; d += 32) out[d] = __fmul_rn(own[d], scale);
  }
  if (head.kind != HeadKind::kQ) write_cached<kType>(args.kv, head, rotation.slot, own);
}

}  // namespace

void launch_rope_write_kv(Stream stream, const RopeWriteKvArgs& args, const RopeRows& rows) {
  const gpu::LaunchShape shape = rope_shape(args);
  with_cache_type(args.kv.dtype, [&]<DType kType>() {
    gpu::launch(stream, shape, rope_write_kv_kernel<kType>, RopeWork{.args = args, .rows = rows});
  });
}

}  // namespace sluice::kernels::cuda
