// SPDX-License-Identifier: Apache-2.0
// INT8 weights with a scale per output; see vec16.h for what may be included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/isa/linear_simd.h"
#include "kernels/cpu/w8a8/w8a8_impl.h"
#include "kernels/cpu/w8a8/w8a8_sums_amx.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

void linear_w8a8(const LinearBlock& block) { w8a8_tiles(block); }

void linear_w8a8_amx(const LinearBlock& block) { w8a8_tiles_with_amx(block); }

}  // namespace sluice::kernels::cpu::SLUICE_ISA
