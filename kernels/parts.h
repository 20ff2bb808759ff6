// SPDX-License-Identifier: Apache-2.0
// Linear layers whose K is shared out over ranks: each computes the subtree of its own segments
// (gemm.h), and the parts join to the bits of the whole layer.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/gemm.h"

namespace sluice::kernels {

// y = the upper levels of gemm.h's fold over the parts, which are those of consecutive equal shares
// of the segments in order: ((p0+p1)+(p2+p3))+((p4+p5)+(p6+p7)). Of kInt8Channel the parts are
// int32 and y = (float(their sum) * s_a) * s_w; of kE4M3Channel y becomes (y * s_a) * s_w, where
// the activations are floats y * s_w, which is also that of kNVFP4. Then bias is added, if any;
// then out = y or out + y.
struct JoinPartsArgs {
  std::span<const float* const> parts;  // 2, 4 or 8, each [num_rows, n]
  const PackedWeight* weight;           // [n, k]
  Activations x;                // some of its columns: rows, and s_a where there is one for a row
  const float* bias = nullptr;  // [n] or null
  float* out;                   // [num_rows, n]
  int64_t out_stride;           // elements
  Epilogue epilogue = Epilogue::kStore;
  const RowSteps* then = nullptr;  // for each row when it is joined; null: nothing
};

void join_parts(const ExecContext& ctx, const JoinPartsArgs& args);

// out[i] = the bits of max |x[i, :]| as an int32: those of larger magnitudes are larger, infinities
// and NaN above all.
struct RowMagnitudesArgs {
  const float* x;
  int64_t x_stride;  // elements
  int32_t num_rows;
  int32_t n;
  int32_t* out;  // [num_rows]
};

void row_magnitudes(const ExecContext& ctx, const RowMagnitudesArgs& args);

}  // namespace sluice::kernels
