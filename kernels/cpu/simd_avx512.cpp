// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for one instruction set; see vec16.h for what may be included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm_impl.h"
#include "kernels/cpu/quantize_impl.h"
#include "kernels/cpu/simd.h"

namespace sluice::kernels::cpu {

extern const SimdTable kAvx512Table = {
    .linear = SLUICE_ISA::linear_block,
    .quantize_row = SLUICE_ISA::quantize_row,
    .rms_norm_row = SLUICE_ISA::rms_norm_row,
};

}  // namespace sluice::kernels::cpu
