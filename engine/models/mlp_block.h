// SPDX-License-Identifier: Apache-2.0
// The feed-forward half of a layer: one gated pair of matrices, or a mixture of experts, each of
// them such a pair.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/models/blocks.h"
#include "engine/models/model.h"

namespace sluice {

struct MlpBuffers {
  float* gate_up = nullptr;  // [rows, 2 * ffn]
  LinearInput down_in;
  // Experts only. Rows are (token, choice) pairs sorted by expert, each expert's first row on a
  // border of activation blocks.
  int32_t max_rows = 0;
  float* router = nullptr;    // [tokens, experts]
  float* weights = nullptr;   // [tokens, top_k]
  int32_t* ids = nullptr;     // [tokens, top_k]
  int32_t* rows = nullptr;    // [tokens, top_k]
  int32_t* source = nullptr;  // [rows] token
  int32_t* first = nullptr;   // [experts] row
  int32_t* count = nullptr;   // [experts] rows
  float* gathered = nullptr;  // [rows, hidden]
  float* output = nullptr;    // [rows, hidden]
  LinearInput router_in;
  LinearInput expert_in;
};

class MlpBlock {
 public:
  static Expected<MlpBlock> load(const ModelConfig& config,
                                 int32_t layer,
                                 int32_t activation_bits,
                                 WeightStore& weights);
  static MlpBuffers layout(const ModelConfig& config,
                           std::span<const MlpBlock> blocks,
                           const StepBounds& bounds,
                           Arena& arena);

  // A dense block's input; experts read plain rows instead.
  [[nodiscard]] bool is_dense() const { return router_.weights().empty(); }

  [[nodiscard]] const Projection& input() const { return experts_.front().gate_up; }

  // out (+)= mlp(input rows).
  void forward(const ForwardContext& context,
               const ModelConfig& config,
               const LinearInput& in,
               const MlpBuffers& buffers,
               ProjectionOutput out,
               kernels::Epilogue epilogue) const;
  // out += scale * (the chosen experts' outputs, weighted), for rows x [tokens, x_stride].
  void forward_experts(const ForwardContext& context,
                       const ModelConfig& config,
                       const float* x,
                       int64_t x_stride,
                       const MlpBuffers& buffers,
                       float scale,
                       ProjectionOutput out) const;

 private:
  struct Pair {
    Projection gate_up;
    Projection down;
  };

  void forward_expert(const ForwardContext& context,
                      const ModelConfig& config,
                      size_t expert,
                      const MlpBuffers& buffers) const;

  Projection router_;
  std::vector<Pair> experts_;  // exactly one in a dense block
};

}  // namespace sluice
