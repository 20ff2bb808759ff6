// SPDX-License-Identifier: Apache-2.0
// Integer linear layers of many rows with VNNI. See vec16.h for what may be included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm/gemm_unpacked_impl.h"
