// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/cpu/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

static void linear_block(const LinearBlock&) {}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
