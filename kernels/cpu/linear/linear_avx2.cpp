// SPDX-License-Identifier: Apache-2.0
// Linear layers and embedding rows compiled for one instruction set; see vec16.h for what may be
// included here.
#define SLUICE_ISA_AVX2

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm/gemm_impl.h"
#include "kernels/cpu/linear/linear_impl.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

void linear_int8(const LinearBlock& block) {
  linear_integer<ActivationFormat::kInt8, int8_t>(block.unpacks_tiles ? linear_unpacked(block)
                                                                      : block);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
