// SPDX-License-Identifier: Apache-2.0
// Row-wise operators that move or combine activations.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/device.h"
#include "kernels/gemm.h"

namespace sluice::kernels {

// out[i, :] = row token_ids[i] of an embedding table in packed layout. Values are those of the
// linear layers' float path (w = fma(code, d, m)), times the row's scale in formats where that
// multiplies folded sums.
struct EmbeddingArgs {
  const PackedWeight* table;           // [vocab, hidden]
  std::span<const TokenId> token_ids;  // each in [0, vocab)
  float* out;                          // [num_tokens, hidden]
  int64_t out_stride;
};

void embedding(const ExecContext& ctx, const EmbeddingArgs& args);

enum class GateFunction : uint8_t {
  kSilu,           // g / (1 + exp(-g)) * u; with a limit, min(limit, the quotient) * u in +-limit
  kGeluTanh,       // (0.5 g) * (1 + tanh(c * fma(0.044715 g^2, g, g))) * u, c = sqrt(2 / pi)
  kClampedSwiglu,  // g = min(g, 7), u in [-7, 7]: g / (1 + exp(-1.702 g)) * (u + 1)
  kSigmoid,        // 1 / (1 + exp(-g)) * u
  kSquaredRelu,    // max(0, g) * max(0, g); u is not read
  kGelu,           // g / 2 * (1 + erf(g / sqrt(2))); u is not read
  kGeluErf,        // the same * u
  kGeluTanhAlone,  // kGeluTanh with u = 1; u is not read
  kRelu,           // max(0, g); u is not read
  kXielu,          // Xielu; u is not read
};

constexpr bool is_gated(GateFunction function) {
  return function != GateFunction::kSquaredRelu && function != GateFunction::kGelu &&
         function != GateFunction::kGeluTanhAlone && function != GateFunction::kRelu &&
         function != GateFunction::kXielu;
}

// A line beside a parabola above 0 and an exponential below. With p = max(0, g), n = min(0, g) and
// b = exp(n) - 1 - n: fma(slope, g, fma(above * p, p, below * b)). From -0.25 on b is n * n times
// a polynomial, by fma from its last term on: 1/2, 1/6, 1/24, 1/120, 1/720, 1/5040.
struct Xielu {
  float above = 0;
  float below = 0;
  float slope = 0;
};

// out = function(gate, up) with this library's exp and tanh, quantized as `out` asks. If `rows` is
// not empty, only these rows are computed.
struct GateMulArgs {
  const float* gate;  // [num_rows, n]
  const float* up;    // [num_rows, n]; null where the function reads none
  int64_t stride;     // in elements, for gate and up
  GateFunction function = GateFunction::kSilu;
  float limit = 0;   // of kSilu; 0: none
  Xielu xielu = {};  // of kXielu
  Activations out;   // k = n
  std::span<const int32_t> rows = {};
};

void gate_mul(const ExecContext& ctx, const GateMulArgs& args);

// x[i, :] = fma(y[i, :], scale, x[i, :]).
struct AddRowsArgs {
  float* x;
  int64_t x_stride;
  const float* y;
  int64_t y_stride;
  int32_t num_rows;
  int32_t n;
  float scale = 1;
};

void add_rows(const ExecContext& ctx, const AddRowsArgs& args);

// x = x * scale, then, where soft_cap is not 0, x = soft_cap * tanh(x * (1 / soft_cap)), then,
// where limit is not 0, x = max(-limit, min(limit, x)). In place.
struct ScaleRowsArgs {
  float* x;
  int64_t x_stride;
  int32_t num_rows;
  int32_t n;
  float scale = 1;
  float soft_cap = 0;
  float limit = 0;
};

void scale_rows(const ExecContext& ctx, const ScaleRowsArgs& args);

// out[i, :] = x[indices[i], :]; an index j below 0 names row -1 - j of `others` instead. `out` must
// not overlap what is read.
struct GatherRowsArgs {
  const float* x;
  int64_t x_stride;
  int32_t n;
  std::span<const int32_t> indices;
  float* out;
  int64_t out_stride;
  const float* others = nullptr;
  int64_t others_stride = 0;

  [[nodiscard]] constexpr const float* row(int64_t index) const {
    return index < 0 ? others + (-1 - index) * others_stride : x + index * x_stride;
  }
};

void gather_rows(const ExecContext& ctx, const GatherRowsArgs& args);

// out[i, c] = x[i, columns[c]], or `absent` where columns[c] is below 0.
struct SelectColumnsArgs {
  const float* x;
  int64_t x_stride;
  int32_t num_rows;
  std::span<const int32_t> columns;
  float absent;
  float* out;
  int64_t out_stride;
};

void select_columns(const ExecContext& ctx, const SelectColumnsArgs& args);

}  // namespace sluice::kernels
