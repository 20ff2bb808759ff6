// SPDX-License-Identifier: Apache-2.0
// Linear layers whose K is shared out over ranks: each computes the subtree of its own segments
// (gemm.h), and the parts join to the bits of the whole layer.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/gemm.h"

namespace sluice::kernels {

// y = the upper levels of gemm.h's fold over the parts, which come from consecutive equal shares of
// the segments, in order: ((p0+p1)+(p2+p3))+((p4+p5)+(p6+p7)). kInt8Channel: the parts are int32, y
// = (float(their sum) * s_a) * s_w. kE4M3Channel: y becomes (y * s_a) * s_w, or y * s_w for float
// activations. kNVFP4: y becomes y * s_w. Then bias is added, if any; then out = y or out + y.
struct JoinPartsArgs {
  std::span<const float* const> parts;  // 2, 4 or 8, each [num_rows, n]
  const PackedWeight* weight;           // [n, k]
  Activations x;                // some of its columns; gives num_rows, and s_a where rows have one
  const float* bias = nullptr;  // [n] or null
  float* out;                   // [num_rows, n]
  int64_t out_stride;           // elements
  Epilogue epilogue = Epilogue::kStore;
  const RowSteps* then = nullptr;  // run for each row once it is joined; null: nothing
};

void join_parts(const ExecContext& ctx, const JoinPartsArgs& args);

// out[i] = the bits of max |x[i, :]| as an int32, which order like the magnitudes, infinities and
// NaN above all numbers.
struct RowMagnitudesArgs {
  const float* x;
  int64_t x_stride;  // elements
  int32_t num_rows;
  int32_t n;
  int32_t* out;  // [num_rows]
};

void row_magnitudes(const ExecContext& ctx, const RowMagnitudesArgs& args);

}  // namespace sluice::kernels
