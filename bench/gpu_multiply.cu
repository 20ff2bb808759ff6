// SPDX-License-Identifier: Apache-2.0
// For gpu_probes. No GPU has run it yet.
#include "bench/gpu_multiply.h"

#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/gpu.h"

namespace sluice::bench {

bool has(Instructions which) {
  constexpr int kHopper = 90;
  return which == Instructions::kMma || gpu::compute_capability() == kHopper;
}

void launch_linear_by(Instructions which,
                      CUstream_st* stream,
                      const kernels::cuda::LinearHalfArgs& args) {
  namespace cuda = kernels::cuda;
  const cuda::Matrices matrices{.format = cuda::MatrixFormat::kBf16,
                                .k = args.k,
                                .weight = reinterpret_cast<const std::byte*>(args.weight),
                                .weight_stride = args.weight_stride * 2,
                                .x = reinterpret_cast<const std::byte*>(args.x),
                                .x_stride = args.x_stride * 2,
                                .x_rows = args.num_rows};
  cuda::Outputs outputs{};
  outputs.k = args.k;
  outputs.n = args.n;
  outputs.num_rows = args.num_rows;
  outputs.out = args.out;
  outputs.out_stride = args.out_stride;
  const auto multiply = which == Instructions::kWgmma ? cuda::launch_wgmma : cuda::launch_mma;
  multiply(stream, matrices, outputs);
}

}  // namespace sluice::bench
