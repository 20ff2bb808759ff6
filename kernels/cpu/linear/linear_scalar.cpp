// SPDX-License-Identifier: Apache-2.0
// Linear layers and embedding rows compiled for one instruction set; see vec16.h for what may be
// included here.
#define SLUICE_ISA_SCALAR

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm/gemm_impl.h"
#include "kernels/cpu/linear/linear_impl.h"
#include "kernels/cpu/w8a8/w8a8_impl.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

void linear_w8a8(const LinearBlock& block) { w8a8_tiles(block); }

void linear_int8(const LinearBlock& block) {
  linear_integer<ActivationFormat::kInt8, int8_t>(block);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
