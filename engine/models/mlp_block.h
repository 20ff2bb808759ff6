// SPDX-License-Identifier: Apache-2.0
// The feed-forward half of a layer: one gated pair of matrices, or a mixture of experts, each of
// them such a pair.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "engine/models/blocks.h"
#include "engine/models/model.h"
#include "engine/models/rank_share.h"
#include "kernels/moe.h"

namespace sluice {

struct MlpBuffers {
  float* gate_up = nullptr;  // [rows, 2 * ffn]
  LinearInput down_in;
  RankParts parts;
  float* gated = nullptr;  // [rows, padded ffn] before it is quantized, where ranks share its scale
  // Experts only. Rows are (token, choice) pairs sorted by expert, each expert's first row on a
  // border of activation blocks.
  int32_t max_rows = 0;
  float* router = nullptr;   // [tokens, experts]
  float* weights = nullptr;  // [tokens, top_k]
  int32_t* ids = nullptr;    // [tokens, top_k]
  int32_t* rows = nullptr;   // [tokens, top_k]
  kernels::ExpertRows experts;
  float* output = nullptr;  // [rows, hidden]
  LinearInput router_in;
  LinearInput expert_in;
};

class MlpBlock {
 public:
  // Moves alone: the groups below point into the experts.
  MlpBlock() = default;
  MlpBlock(MlpBlock&&) noexcept = default;
  MlpBlock& operator=(MlpBlock&&) noexcept = default;

  static Expected<MlpBlock> load(const ModelConfig& config,
                                 int32_t layer,
                                 int32_t activation_bits,
                                 WeightStore& weights);
  // Rows that so many tokens take at most: of experts, every one's share rounded up to blocks of
  // activations.
  static int32_t max_rows(const ModelConfig& config, int32_t tokens);
  static MlpBuffers layout(const ModelConfig& config,
                           std::span<const MlpBlock> blocks,
                           const StepBounds& bounds,
                           Arena& arena);

  // A dense block's input; experts read plain rows instead.
  [[nodiscard]] bool is_dense() const { return router_.weights().empty(); }

  [[nodiscard]] const Projection& input() const { return experts_.front().gate_up; }

  // out (+)= mlp(input rows), then `then` for each row.
  void forward(const ForwardContext& context,
               const ModelConfig& config,
               const LinearInput& in,
               const MlpBuffers& buffers,
               ProjectionOutput out,
               kernels::Epilogue epilogue,
               const kernels::RowSteps& then) const;
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

  // One kind of matrix of all experts, by the activations it takes: [experts, of each].
  struct Grouped {
    std::vector<kernels::ExpertMatrix> matrices;
    int32_t per_expert = 0;
  };

  using GroupedByFormat = std::array<Grouped, kNumActivationFormats>;

  // Of the last one.
  static Expected<void> check_like_first(const std::vector<Pair>& experts,
                                         const std::string& place,
                                         bool on_device);
  static GroupedByFormat group_experts(const std::vector<Pair>& experts,
                                       Projection Pair::*projection,
                                       int64_t part_width);
  // The chosen experts' matrices over their rows.
  static void run_experts(const kernels::ExecContext& exec,
                          const GroupedByFormat& grouped,
                          const LinearInput& in,
                          const MlpBuffers& buffers,
                          ProjectionOutput out,
                          kernels::Segments segments = {});
  void join_experts(const ForwardContext& context,
                    const LinearInput& in,
                    const MlpBuffers& buffers,
                    int64_t hidden) const;

  Projection router_;
  std::vector<Pair> experts_;  // exactly one in a dense block
  GroupedByFormat grouped_gate_up_;
  GroupedByFormat grouped_down_;
  std::vector<kernels::ExpertMatrix> joined_down_;  // one of each, with its bias
};

}  // namespace sluice
