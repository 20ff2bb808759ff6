// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/isa/simd.h"

#include "engine/core/status.h"

namespace sluice::kernels::cpu {

const SimdTable& simd_table(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kScalarTable;
    case Isa::kAvx2:
      return kAvx2Table;
    case Isa::kAvx512:
      return kAvx512Table;
    case Isa::kAmx:
      return kAmxTable;
  }
  SLUICE_UNREACHABLE("instruction set without a table");
}

}  // namespace sluice::kernels::cpu
