// SPDX-License-Identifier: Apache-2.0
// FP8 linear layers with fma; see vec16.h for what may be included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/e4m3/e4m3_impl.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

void linear_e4m3(const LinearBlock& block) {
  block.dots_bf16 ? linear_e4m3_bf16(block) : e4m3_tiles<false>(block);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
