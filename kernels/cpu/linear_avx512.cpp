// SPDX-License-Identifier: Apache-2.0
// Linear layers and embedding rows compiled for one instruction set; see vec16.h for what may be
// included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm_float_impl.h"
#include "kernels/cpu/gemm_impl.h"
#include "kernels/cpu/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

void linear_block(const LinearBlock& block) {
  switch (block.activation) {
    case ActivationFormat::kInt8:
      return linear_integer<ActivationFormat::kInt8, int8_t>(block.opens ? linear_open(block)
                                                                         : block);
    case ActivationFormat::kInt16:
      return linear_int16(block);
    case ActivationFormat::kFloat:
      return linear_float(block);
    case ActivationFormat::kInt8Token:
      return linear_channel(block);
    case ActivationFormat::kE4M3Token:
    case ActivationFormat::kE4M3Group:
      return block.dots_bf16 ? linear_e4m3_bf16(block) : linear_e4m3(block);
    case ActivationFormat::kBF16:
    case ActivationFormat::kF16:
      return;  // no weight of this backend takes it
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
