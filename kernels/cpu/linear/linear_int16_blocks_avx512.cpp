// SPDX-License-Identifier: Apache-2.0
// GGUF's formats with blocks of 32 weights times int16 activations, for linear_avx512.cpp; see
// vec16.h for what may be included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm/gemm_impl.h"
#include "kernels/cpu/isa/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

void linear_int16_blocks(const LinearBlock& block) {
  linear_family<FormatFamily::kBlocks, ActivationFormat::kInt16, int16_t>(block);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
