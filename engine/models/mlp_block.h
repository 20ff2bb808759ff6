// SPDX-License-Identifier: Apache-2.0
// The feed-forward half of a layer: one gated pair of matrices, or a mixture of experts that are
// such pairs.
#pragma once

#include <array>
#include <functional>
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
  float* gated = nullptr;  // [rows, padded ffn] unquantized, if ranks share its scale
  // Experts only. Rows are (token, choice) pairs sorted by expert; each expert's first row is
  // aligned to activation blocks.
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
  // Move-only: the groups below point into the experts.
  MlpBlock() = default;
  MlpBlock(MlpBlock&&) noexcept = default;
  MlpBlock& operator=(MlpBlock&&) noexcept = default;

  static Expected<MlpBlock> load(const ModelConfig& config,
                                 int32_t layer,
                                 int32_t activation_bits,
                                 WeightStore& weights);
  // The most rows for `tokens` tokens; with experts, every expert's share is rounded up to
  // activation blocks.
  static int32_t max_rows(const ModelConfig& config, int32_t tokens);
  static MlpBuffers layout(const ModelConfig& config,
                           std::span<const MlpBlock> blocks,
                           const StepBounds& bounds,
                           Arena& arena);

  // A dense block has an input projection; experts read plain rows instead.
  [[nodiscard]] bool is_dense() const { return router_.weights().empty(); }

  [[nodiscard]] const Projection& input() const { return experts_.front().gate_up; }

  // Computes out (+)= mlp(input rows), then runs `then` for each row.
  void forward(const ForwardContext& context,
               const ModelConfig& config,
               const LinearInput& in,
               const MlpBuffers& buffers,
               ProjectionOutput out,
               kernels::Epilogue epilogue,
               const kernels::RowSteps& then) const;
  // Computes out += scale * (weighted outputs of the chosen experts), for rows x [tokens,
  // x_stride].
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

  // The matrices of one kind of all experts, by activation format: [experts, per_expert]. On the
  // CPU experts may differ, as where some of them are kept: no weight where one takes another
  // format.
  struct Grouped {
    std::vector<kernels::ExpertMatrix> matrices;
    int32_t per_expert = 0;
  };

  using GroupedByFormat = std::array<Grouped, kNumActivationFormats>;

  // Checks that the last expert has the same formats as the first.
  static Expected<void> check_like_first(
      const std::vector<Pair>& experts,
      const std::function<std::string(const std::string&)>& place_of,
      bool on_device);
  static GroupedByFormat group_experts(const std::vector<Pair>& experts,
                                       Projection Pair::*projection,
                                       int64_t part_width);
  // Chooses the experts of rows x, and returns the places of (token, choice) pairs among the rows
  // that experts read.
  std::span<const int32_t> route(const ForwardContext& context,
                                 const MoeConfig& moe,
                                 const float* x,
                                 int64_t x_stride,
                                 const MlpBuffers& buffers) const;
  // Runs the chosen experts' matrices over their rows.
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
  std::vector<Pair> experts_;  // a single one in a dense block
  GroupedByFormat grouped_gate_up_;
  GroupedByFormat grouped_down_;
  std::vector<kernels::ExpertMatrix> joined_down_;  // one per expert, with its bias
};

}  // namespace sluice
