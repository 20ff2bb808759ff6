// SPDX-License-Identifier: Apache-2.0
// Recurrent layers for one instruction set; see vec16.h for what may be included here.
#define SLUICE_ISA_SCALAR

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/recurrent/recurrent_impl.h"

namespace sluice::kernels::cpu {

extern const RecurrentTable kScalarRecurrent = {
    .conv_block = SLUICE_ISA::conv_block,
    .delta_row = SLUICE_ISA::delta_row,
    .delta_block = SLUICE_ISA::delta_block,
    .mamba_row = SLUICE_ISA::mamba_row,
    .mamba_block = SLUICE_ISA::mamba_block,
};

}  // namespace sluice::kernels::cpu
