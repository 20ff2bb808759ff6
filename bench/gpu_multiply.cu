// SPDX-License-Identifier: Apache-2.0
// The BF16 layers by chosen instructions, for gpu_probes.
#include "bench/gpu_multiply.h"

#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"

namespace sluice::bench {

bool has(Instructions which) {
  return which == Instructions::kMma || gpu::ptx::device_has_wgmma();
}

void launch_linear_by(Instructions which,
                      CUstream_st* stream,
                      const kernels::cuda::LinearHalfArgs& args) {
  namespace cuda = kernels::cuda;
  const cuda::Layer layer{cuda::matrices_of(args),
                          cuda::outputs_of(args, args.num_rows, args.n, args.k, nullptr)};
  if (which == Instructions::kWgmma) return cuda::launch_wgmma(stream, {&layer, 1});
  cuda::launch_mma(stream, layer.matrices, layer.outputs);
}

}  // namespace sluice::bench
