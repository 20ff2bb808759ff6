// SPDX-License-Identifier: Apache-2.0
// BF16 layers by instructions of the caller's choice; gemm.cu chooses them by the device.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::bench {

enum class Instructions : uint8_t { kWgmma, kMma };

// Whether the current device has these instructions: wgmma is Hopper's alone.
bool has(Instructions which);

// launch_linear_half without bias and workspace, storing, by instructions that the device has.
void launch_linear_by(Instructions which,
                      CUstream_st* stream,
                      const kernels::cuda::LinearHalfArgs& args);

}  // namespace sluice::bench
