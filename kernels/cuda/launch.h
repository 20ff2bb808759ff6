// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's kernels as functions that put work on a stream. Pointers in the arguments are
// device memory, but for PackedWeight and Activations, which are structs of the host over device
// memory. Definitions are those of kernels/*.h; bits equal the CPU's where no comment says less.
// NaN results are NaN, of whatever payload. No GPU has run any of this yet.
#pragma once

#include <cstdint>

#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

struct CUstream_st;

namespace sluice::kernels::cuda {

using Stream = CUstream_st*;  // cudaStream_t, for callers that include no CUDA

void launch_rms_norm(Stream stream, const RmsNormArgs& args);
void launch_head_norm(Stream stream, const HeadNormArgs& args);
void launch_quantize_activations(Stream stream, const QuantizeArgs& args);
void launch_gate_mul(Stream stream, const GateMulArgs& args);
void launch_add_rows(Stream stream, const AddRowsArgs& args);
void launch_scale_rows(Stream stream, const ScaleRowsArgs& args);
void launch_gather_rows(Stream stream, const GatherRowsArgs& args);

// Tables of float formats only.
void launch_embedding(Stream stream, const EmbeddingArgs& args);

// The rows of a RopeTable in device memory, [positions][num_pairs] each.
struct RopeRows {
  const float* cos = nullptr;  // null: no rotation
  const float* sin = nullptr;
  int32_t num_pairs = 0;
  RopeStyle style = RopeStyle::kInterleaved;
};

// `rows` takes the place of args.table, which is not read.
void launch_rope_write_kv(Stream stream, const RopeWriteKvArgs& args, const RopeRows& rows);

}  // namespace sluice::kernels::cuda
