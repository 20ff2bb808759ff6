// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for one instruction set.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/isa/simd_table.h"

namespace sluice::kernels::cpu {

namespace {

constexpr SimdTable with_amx(SimdTable table) {
  table.linear = SLUICE_ISA::linear_block_amx;
  return table;
}

}  // namespace

extern const SimdTable kAvx512Table = SLUICE_ISA::kTable;
extern constinit const SimdTable kAmxTable = with_amx(SLUICE_ISA::kTable);

}  // namespace sluice::kernels::cpu
