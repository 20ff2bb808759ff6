// SPDX-License-Identifier: Apache-2.0
// 16 floats and 16 ints as the CPU kernels see them: one zmm, two ymm or an array. Lanes and trees
// are the same in all three. Only the <family>_<isa>.cpp files include it, each after it has
// defined one SLUICE_ISA_<NAME>. Everything compiled there stays in that namespace or is static,
// because the linker would otherwise keep one set's copy of an inline function for all. So nothing
// of the standard library is used there that could become a function in the object
// (tests/kernels/symbols_test.sh).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(SLUICE_ISA_AVX512)
#include <immintrin.h>
#define SLUICE_ISA avx512
#elif defined(SLUICE_ISA_AVX2)
#include <immintrin.h>
#define SLUICE_ISA avx2
#elif defined(SLUICE_ISA_SCALAR)
#define SLUICE_ISA scalar
#else
#error "define SLUICE_ISA_SCALAR, SLUICE_ISA_AVX2 or SLUICE_ISA_AVX512"
#endif

#define SLUICE_INLINE [[gnu::always_inline]] inline

#if defined(SLUICE_ISA_AVX512)
#include "kernels/cpu/isa/vec16_avx512.h"
#elif defined(SLUICE_ISA_AVX2)
#include "kernels/cpu/isa/vec16_avx2.h"
#else
#include "kernels/cpu/isa/vec16_scalar.h"
#endif
