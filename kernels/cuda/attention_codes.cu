// SPDX-License-Identifier: Apache-2.0
// Attention by mma.sync over caches of codes of 8 bits.
#include "kernels/cuda/attention_mma.h"

namespace sluice::kernels::cuda {

void launch_attention_codes(Stream stream, const AttentionWork& work, const AttentionGrid& grid) {
  switch (work.args.kv.dtype) {
    case DType::kI8:
      return launch_attention_by_mma<Int8Cache>(stream, work, grid);
    case DType::kF8E4M3:
      return launch_attention_by_mma<Fp8Cache>(stream, work, grid);
    default:
      SLUICE_UNREACHABLE("no KV cache of the tensor cores");
  }
}

}  // namespace sluice::kernels::cuda
