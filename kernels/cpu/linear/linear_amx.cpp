// SPDX-License-Identifier: Apache-2.0
// Integer linear layers of several rows with AMX, in AVX-512's namespace, which has the rest. See
// vec16.h for what may be included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm/gemm_amx.h"
#include "kernels/cpu/isa/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {
namespace {

// A register holds the sums of 16 rows, and storing it takes as long for fewer. VNNI is faster with
// 8 rows (bench/kernels).
constexpr int32_t kFewestRows = 9;

// INT8 W8A8 sums are stored only once, after all of K.
constexpr int32_t kFewestW8A8Rows = 8;

}  // namespace

void linear_block_amx(const LinearBlock& block) {
  if (block.num_rows >= kFewestRows && block.activation == ActivationFormat::kInt8) {
    return with_block_format(block.format,
                             [&]<WeightFormat kFormat>() { tiles_with_amx<kFormat>(block); });
  }
  if (block.num_rows >= kFewestW8A8Rows && block.activation == ActivationFormat::kInt8Token) {
    return linear_w8a8_amx(block);
  }
  linear_block(block);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
