// SPDX-License-Identifier: Apache-2.0
// linear_avx2.cpp for int16 activations; see vec16.h for what may be included here.
#define SLUICE_ISA_AVX2

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm/gemm_impl.h"
#include "kernels/cpu/isa/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

void linear_int16(const LinearBlock& block) {
  linear_integer<ActivationFormat::kInt16, int16_t>(block);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
