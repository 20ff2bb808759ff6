// SPDX-License-Identifier: Apache-2.0
// The functions that read packed weights, per instruction set. They have files of their own because
// they are compiled once per format, activation width and row count.
#pragma once

#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// Defined in linear_<isa>.cpp.
void linear_block(const LinearBlock& block);
void embedding_row(const EmbeddingRow& row);

// Defined in linear_unpacked_<isa>.cpp, except for the scalar set: int8 activations of many rows.
// Returns the rest of the block, too few tiles for it.
LinearBlock linear_unpacked(const LinearBlock& block);

// Defined in linear_amx.cpp, for AVX-512 only.
void linear_block_amx(const LinearBlock& block);

// Integer blocks. Defined in linear_<isa>.cpp and linear_int16_<isa>.cpp, for AVX-512 both in
// linear_avx512.cpp.
void linear_int8(const LinearBlock& block);
void linear_int16(const LinearBlock& block);

// Defined in linear_int<bits>_<family>_avx512.cpp: the parts of the two above, by FormatFamily.
void linear_int8_blocks(const LinearBlock& block);
void linear_int8_superblocks(const LinearBlock& block);
void linear_int8_groups(const LinearBlock& block);
void linear_int16_blocks(const LinearBlock& block);
void linear_int16_superblocks(const LinearBlock& block);
void linear_int16_groups(const LinearBlock& block);

// Defined in w8a8_<isa>.cpp and linear_scalar.cpp: INT8 weights with a scale per output.
void linear_w8a8(const LinearBlock& block);
void linear_w8a8_amx(const LinearBlock& block);  // AVX-512 only

// Defined in e4m3_<isa>.cpp and, for AVX-512 only, e4m3_bf16.cpp: FP8 weights and rows.
void linear_e4m3(const LinearBlock& block);
void linear_e4m3_bf16(const LinearBlock& block);

}  // namespace sluice::kernels::cpu::SLUICE_ISA
