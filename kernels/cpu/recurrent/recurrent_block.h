// SPDX-License-Identifier: Apache-2.0
// Pieces of work of kernels/recurrent.h for one instruction set. Plain pointers and integers only
// (kernels/cpu/isa/vec16.h).
#pragma once

#include <cstdint>

namespace sluice::kernels::cpu {

// Sixteen channels of a convolution over the rows of one request that share a block.
struct ConvBlock {
  const float* x;
  const float* gate_in;   // or null
  const float* gate_out;  // or null
  int64_t x_stride;
  float* out;
  int64_t out_stride;
  int32_t num_rows;
  int32_t taps;
  const float* weight;  // [taps][stride n]
  const float* bias;    // or null
  int64_t n;            // channels of a row of weights
  bool silu;
  float* window;  // [(taps - 1) * 16]: read and left by the call
};

// One row of the delta rule before its recurrence.
struct DeltaRow {
  float* q;
  float* k;
  float* b;
  float* a;
  const float* rate;
  const float* dt_bias;
  bool decays_channels;
  int32_t num_key_heads;
  int32_t num_value_heads;
  int32_t key_dim;
  float scale;
  float beta_scale;
  float eps;
};

// Sixteen columns of a head's state over rows of one request that share a block.
struct DeltaBlock {
  const float* q;
  const float* k;
  const float* v;
  int64_t qkv_stride;
  const float* beta;
  const float* decay;  // of a row one, or [key_dim]
  bool decays_channels;
  int64_t gate_stride;
  float* out;
  int64_t out_stride;
  int32_t num_rows;
  int32_t key_dim;
  float* state;  // [key_dim][16]
};

// The steps of one row of Mamba-2 before its recurrence.
struct MambaRow {
  float* dt;
  float* decay;
  const float* rate;
  const float* dt_bias;
  float min_step;
  float max_step;
  int32_t num_heads;
};

// Sixteen columns of a head's state over rows of one request that share a block.
struct MambaBlock {
  const float* x;
  const float* b;
  const float* c;
  int64_t row_stride;
  const float* step;
  const float* decay;
  int64_t step_stride;
  float skip;
  float* out;
  int64_t out_stride;
  int32_t num_rows;
  int32_t state_dim;
  float* state;  // [state_dim][16]
};

struct RecurrentTable {
  void (*conv_block)(const ConvBlock& block);
  void (*delta_row)(const DeltaRow& row);
  void (*delta_block)(const DeltaBlock& block);
  void (*mamba_row)(const MambaRow& row);
  void (*mamba_block)(const MambaBlock& block);
};

extern const RecurrentTable kScalarRecurrent;
extern const RecurrentTable kAvx2Recurrent;
extern const RecurrentTable kAvx512Recurrent;

}  // namespace sluice::kernels::cpu
