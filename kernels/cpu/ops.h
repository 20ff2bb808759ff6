// SPDX-License-Identifier: Apache-2.0
// The operators of the CPU backend; dispatch.cpp names each beside its CUDA counterpart.
#pragma once

#include "kernels/gemm.h"
#include "kernels/norm.h"

namespace sluice::kernels::cpu {

void linear(const ExecContext& ctx, const LinearArgs& args);
void quantize_activations(const ExecContext& ctx, const QuantizeArgs& args);
void rms_norm(const ExecContext& ctx, const RmsNormArgs& args);

}  // namespace sluice::kernels::cpu
