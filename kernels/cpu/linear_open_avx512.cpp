// SPDX-License-Identifier: Apache-2.0
// Integer linear layers of many rows with VNNI. See vec16.h for what may be included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/gemm_open_avx512.h"
#include "kernels/cpu/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

LinearBlock linear_open(const LinearBlock& block) {
  int32_t tile = 0;
  with_block_format(block.format, [&]<WeightFormat kFormat>() {
    for (; tile + kOpenTiles <= block.num_tiles; tile += kOpenTiles) {
      open_tiles<kFormat>(block, tile);
    }
  });
  LinearBlock rest = block;
  rest.num_tiles -= tile;
  rest.num_columns -= tile * kRowTile;
  rest.weight += tile * block.tile_bytes;
  rest.out += tile * kRowTile;
  if (rest.bias != nullptr) rest.bias += tile * kRowTile;
  return rest;
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
