// SPDX-License-Identifier: Apache-2.0
// Attention by mma.sync over caches of 16 bits.
#include "kernels/cuda/attention_mma.h"

namespace sluice::kernels::cuda {

void launch_attention_mma(Stream stream, const AttentionWork& work, const AttentionGrid& grid) {
  switch (work.args.kv.dtype) {
    case DType::kF16:
      return launch_attention_by_mma<F16Cache>(stream, work, grid);
    case DType::kBF16:
      return launch_attention_by_mma<Bf16Cache>(stream, work, grid);
    case DType::kI8:
      return launch_attention_int8(stream, work, grid);
    case DType::kF8E4M3:
      return launch_attention_fp8(stream, work, grid);
    default:
      SLUICE_UNREACHABLE("no KV cache of the tensor cores");
  }
}

}  // namespace sluice::kernels::cuda
