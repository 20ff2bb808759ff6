// SPDX-License-Identifier: Apache-2.0
// Integer linear layers of several rows with AMX; the rest is AVX-512's, in whose namespace this
// lives. See vec16.h for what may be included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {
namespace {

// A register holds the sums of 16 rows, and moving it back to memory takes as long for fewer. With
// 8 rows VNNI takes less time (bench/kernels).
constexpr int32_t kFewestRows = 9;

// These sums come back once.
constexpr int32_t kFewestChannelRows = 8;

void integer_with_amx(const LinearBlock& block) {
  switch (block.format) {
    case WeightFormat::kQ4_0:
      return tiles_with_amx<WeightFormat::kQ4_0>(block);
    case WeightFormat::kQ4_1:
      return tiles_with_amx<WeightFormat::kQ4_1>(block);
    case WeightFormat::kQ5_0:
      return tiles_with_amx<WeightFormat::kQ5_0>(block);
    case WeightFormat::kQ5_1:
      return tiles_with_amx<WeightFormat::kQ5_1>(block);
    case WeightFormat::kQ8_0:
      return tiles_with_amx<WeightFormat::kQ8_0>(block);
    case WeightFormat::kQ2_K:
      return tiles_with_amx<WeightFormat::kQ2_K>(block);
    case WeightFormat::kQ3_K:
      return tiles_with_amx<WeightFormat::kQ3_K>(block);
    case WeightFormat::kQ4_K:
      return tiles_with_amx<WeightFormat::kQ4_K>(block);
    case WeightFormat::kQ5_K:
      return tiles_with_amx<WeightFormat::kQ5_K>(block);
    case WeightFormat::kQ6_K:
      return tiles_with_amx<WeightFormat::kQ6_K>(block);
    case WeightFormat::kIQ4_NL:
      return tiles_with_amx<WeightFormat::kIQ4_NL>(block);
    case WeightFormat::kIQ4_XS:
      return tiles_with_amx<WeightFormat::kIQ4_XS>(block);
    case WeightFormat::kMXFP4:
      return tiles_with_amx<WeightFormat::kMXFP4>(block);
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
    case WeightFormat::kInt8Channel:
      return;  // these take activations of their own; the caller checks
  }
}

}  // namespace

void linear_block_amx(const LinearBlock& block) {
  if (block.num_rows >= kFewestRows && block.activation == ActivationFormat::kInt8) {
    return integer_with_amx(block);
  }
  if (block.num_rows >= kFewestChannelRows && block.activation == ActivationFormat::kInt8Token) {
    return linear_channel_amx(block);
  }
  linear_block(block);
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
