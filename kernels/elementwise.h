// SPDX-License-Identifier: Apache-2.0
// Row-wise operators that move or combine activations.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/types.h"
#include "kernels/gemm.h"

namespace sluice::kernels {

// out[i, :] = row token_ids[i] of an embedding table that stays in packed layout; values as the
// float path of the linear layers sees them (w = fma(code, d, m)).
struct EmbeddingArgs {
  const PackedWeight* table;           // [vocab, hidden]
  std::span<const TokenId> token_ids;  // each in [0, vocab)
  float* out;                          // [num_tokens, hidden]
  int64_t out_stride;
};

void embedding(const ExecContext& ctx, const EmbeddingArgs& args);

// out = silu(gate) * up, silu(x) = x / (1 + exp(-x)) with this library's exp; quantized as `out`
// asks.
struct SiluMulArgs {
  const float* gate;  // [num_rows, n]
  const float* up;    // [num_rows, n]
  int64_t stride;     // elements, of both
  Activations out;    // k = n
};

void silu_mul(const ExecContext& ctx, const SiluMulArgs& args);

// out[i, :] = x[indices[i], :].
struct GatherRowsArgs {
  const float* x;
  int64_t x_stride;
  int32_t n;
  std::span<const int32_t> indices;
  float* out;
  int64_t out_stride;
};

void gather_rows(const ExecContext& ctx, const GatherRowsArgs& args);

}  // namespace sluice::kernels
