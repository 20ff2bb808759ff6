// SPDX-License-Identifier: Apache-2.0
// Attention by mma.sync over caches of FP8 codes.
#include "kernels/cuda/attention_mma.h"

namespace sluice::kernels::cuda {

void launch_attention_fp8(Stream stream, const AttentionWork& work, const AttentionGrid& grid) {
  launch_attention_by_mma<Fp8Cache>(stream, work, grid);
}

}  // namespace sluice::kernels::cuda
