// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for one instruction set.
#define SLUICE_ISA_SCALAR

#include "kernels/cpu/isa/simd_table.h"

namespace sluice::kernels::cpu {

extern const SimdTable kScalarTable = SLUICE_ISA::kTable;

}  // namespace sluice::kernels::cpu
