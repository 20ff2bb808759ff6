// SPDX-License-Identifier: Apache-2.0
// Integer linear layers of many rows with VNNI. See vec16.h for what may be included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm_open_avx512.h"
#include "kernels/cpu/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {
namespace {

template <WeightFormat kFormat>
LinearBlock open_all(const LinearBlock& block) {
  int32_t tile = 0;
  for (; tile + kOpenTiles <= block.num_tiles; tile += kOpenTiles) {
    open_tiles<kFormat>(block, tile);
  }
  LinearBlock rest = block;
  rest.num_tiles -= tile;
  rest.num_columns -= tile * kRowTile;
  rest.weight += tile * block.tile_bytes;
  rest.out += tile * kRowTile;
  if (rest.bias != nullptr) rest.bias += tile * kRowTile;
  return rest;
}

}  // namespace

LinearBlock linear_open(const LinearBlock& block) {
  switch (block.format) {
    case WeightFormat::kQ4_0:
      return open_all<WeightFormat::kQ4_0>(block);
    case WeightFormat::kQ4_1:
      return open_all<WeightFormat::kQ4_1>(block);
    case WeightFormat::kQ5_0:
      return open_all<WeightFormat::kQ5_0>(block);
    case WeightFormat::kQ5_1:
      return open_all<WeightFormat::kQ5_1>(block);
    case WeightFormat::kQ8_0:
      return open_all<WeightFormat::kQ8_0>(block);
    case WeightFormat::kQ2_K:
      return open_all<WeightFormat::kQ2_K>(block);
    case WeightFormat::kQ3_K:
      return open_all<WeightFormat::kQ3_K>(block);
    case WeightFormat::kQ4_K:
      return open_all<WeightFormat::kQ4_K>(block);
    case WeightFormat::kQ5_K:
      return open_all<WeightFormat::kQ5_K>(block);
    case WeightFormat::kQ6_K:
      return open_all<WeightFormat::kQ6_K>(block);
    case WeightFormat::kIQ4_NL:
      return open_all<WeightFormat::kIQ4_NL>(block);
    case WeightFormat::kIQ4_XS:
      return open_all<WeightFormat::kIQ4_XS>(block);
    case WeightFormat::kMXFP4:
      return open_all<WeightFormat::kMXFP4>(block);
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
    case WeightFormat::kInt8Channel:
      break;  // these take activations of their own; the caller checks
  }
  return block;
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
