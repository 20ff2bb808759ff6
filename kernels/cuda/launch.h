// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's kernels as functions that put work on a stream. Pointers in the arguments are
// device memory, but for PackedWeight and Activations, which are structs of the host over device
// memory. Definitions are those of kernels/*.h; bits equal the CPU's where no comment says less.
// NaN results are NaN, of whatever payload. No GPU has run any of this yet.
#pragma once

#include <cstdint>

#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

struct CUstream_st;

namespace sluice::kernels::cuda {

using Stream = CUstream_st*;  // cudaStream_t, for callers that include no CUDA

void launch_rms_norm(Stream stream, const RmsNormArgs& args);
void launch_head_norm(Stream stream, const HeadNormArgs& args);

}  // namespace sluice::kernels::cuda
