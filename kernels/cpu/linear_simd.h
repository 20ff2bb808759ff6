// SPDX-License-Identifier: Apache-2.0
// What reads packed weights, per instruction set; in files of its own because it is compiled once
// per format, activation width and row count.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/cpu/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// linear_<isa>.cpp.
void linear_block(const LinearBlock& block);
void embedding_row(const EmbeddingRow& row);

// linear_open_<isa>.cpp, but for the scalar set: int8 activations of many rows. Returns the tiles
// that are left, too few for it.
LinearBlock linear_open(const LinearBlock& block);

// linear_amx.cpp, AVX-512's only.
void linear_block_amx(const LinearBlock& block);

// linear_<isa>.cpp and, but for AVX-512's, linear16_<isa>.cpp: blocks of integers by activations.
void linear_int8(const LinearBlock& block);
void linear_int16(const LinearBlock& block);

// linear<bits>_<family>_avx512.cpp: what these are there, by FormatFamily.
void linear8_blocks(const LinearBlock& block);
void linear8_superblocks(const LinearBlock& block);
void linear8_groups(const LinearBlock& block);
void linear16_blocks(const LinearBlock& block);
void linear16_superblocks(const LinearBlock& block);
void linear16_groups(const LinearBlock& block);

// channel_<isa>.cpp, linear_scalar.cpp: INT8 weights with a scale per output.
void linear_channel(const LinearBlock& block);
void linear_channel_amx(const LinearBlock& block);  // AVX-512's only

// e4m3_<isa>.cpp, and e4m3_bf16.cpp, AVX-512's only: FP8 weights and rows.
void linear_e4m3(const LinearBlock& block);
void linear_e4m3_bf16(const LinearBlock& block);

}  // namespace sluice::kernels::cpu::SLUICE_ISA
