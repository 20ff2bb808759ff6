// SPDX-License-Identifier: Apache-2.0
// Attention by mma.sync over caches of INT8 codes.
#include "kernels/cuda/attention_mma.h"

namespace sluice::kernels::cuda {

void launch_attention_int8(Stream stream, const AttentionWork& work, const AttentionGrid& grid) {
  launch_attention_by_mma<Int8Cache>(stream, work, grid);
}

}  // namespace sluice::kernels::cuda
