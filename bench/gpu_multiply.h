// SPDX-License-Identifier: Apache-2.0
// The BF16 layers by the instructions that gemm.cu would not choose on this device.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::bench {

enum class Instructions : uint8_t { kWgmma, kMma };

// As launch_linear_half, without bias and workspace, storing.
void launch_linear_by(Instructions which,
                      CUstream_st* stream,
                      const kernels::cuda::LinearHalfArgs& args);

}  // namespace sluice::bench
