// SPDX-License-Identifier: Apache-2.0
// The part of a linear layer that linear_<isa>.cpp compiles once: embedding rows, and the dispatch
// by activations to the kernels of this file and the files beside it.
#pragma once

#include "kernels/cpu/gemm/gemm_float_impl.h"
#include "kernels/cpu/gemm/unpack_any_impl.h"
#include "kernels/cpu/isa/linear_simd.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

void embedding_row(const EmbeddingRow& row) {
  alignas(64) float buffer[kQuantGroup * kRowTile];
  float scale = 1;
  if (row.scaled) std::memcpy(&scale, row.tile + 4 * row.row_in_tile, sizeof(scale));
  for (int32_t k = 0; k < row.k; k += kQuantGroup) {
    const float* const w = expand_group(row.format, row.tile, k / kQuantGroup, buffer);
    const int32_t count = row.k - k < kQuantGroup ? row.k - k : kQuantGroup;
    for (int32_t j = 0; j < count; ++j) {
      const float value = w[j * kRowTile + row.row_in_tile];
      row.out[k + j] = row.scaled ? value * scale : value;
    }
  }
}

void linear_block(const LinearBlock& block) {
  switch (block.activation) {
    case ActivationFormat::kInt8:
      return linear_int8(block);
    case ActivationFormat::kInt16:
      return linear_int16(block);
    case ActivationFormat::kFloat:
      return linear_float(block);
    case ActivationFormat::kInt8Token:
      return linear_w8a8(block);
    case ActivationFormat::kE4M3Token:
    case ActivationFormat::kE4M3Group:
      return linear_e4m3(block);
    case ActivationFormat::kBF16:
    case ActivationFormat::kF16:
      return;  // no weight of this backend takes it
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
