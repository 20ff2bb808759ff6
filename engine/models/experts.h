// SPDX-License-Identifier: Apache-2.0
// A feed-forward half that is a mixture of experts: a router, gated pairs of matrices, or matrices
// without a gate, of which each token takes some, and, in some families, shared experts that every
// token takes. Experts may read and write a narrower row: a matrix leads to it, another back.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/models/blocks.h"
#include "engine/models/dense_ffn.h"
#include "engine/models/halves.h"
#include "engine/models/rank_share.h"
#include "kernels/moe.h"

namespace sluice {

// Order of the sum: the shared experts' output, then the chosen ones' by id.
class Experts final : public Ffn {
 public:
  // `config` must outlive it.
  static Expected<std::unique_ptr<Experts>> load(const ModelConfig& config,
                                                 int32_t layer,
                                                 int32_t activation_bits,
                                                 WeightStore& weights);

  [[nodiscard]] const Projection* input() const override {
    return shared_ == nullptr ? nullptr : shared_->input();
  }

  [[nodiscard]] bool reads_plain() const override { return true; }

  // Every expert's share is rounded up to activation blocks.
  [[nodiscard]] int64_t max_sent_rows(int32_t tokens) const override { return max_rows(tokens); }

  [[nodiscard]] int64_t scratch_bytes(const StepBounds& bounds) const override;
  void bind(const StepBounds& bounds, std::span<std::byte> scratch) override;
  void forward(const ForwardContext& context,
               const FfnInput& in,
               const HalfOutput& out) const override;

 private:
  // The choice of one expert that every token takes: where rows of tokens are scaled each.
  struct OneForAll {
    float* weights = nullptr;  // [tokens]
    int32_t* ids = nullptr;    // [tokens] zeros
    int32_t* rows = nullptr;   // [tokens] their numbers
    kernels::ExpertRows places;
  };

  // Rows are (token, choice) pairs sorted by expert; each expert's first row is aligned to
  // activation blocks.
  struct Buffers {
    float* gate_up = nullptr;  // [rows, 2 * width], or [rows, width] without a gate
    LinearInput down_in;
    RankParts parts;
    float* gated = nullptr;    // [rows, padded width] unquantized, if ranks share its scale
    float* router = nullptr;   // [tokens, experts]
    float* weights = nullptr;  // [tokens, top_k]
    int32_t* ids = nullptr;    // [tokens, top_k]
    int32_t* rows = nullptr;   // [tokens, top_k]
    kernels::ExpertRows experts;
    float* output = nullptr;  // [rows, expert width]
    // Where experts are narrower: what they read and the sum of what they write.
    float* latent = nullptr;      // [tokens, padded expert width]
    float* latent_sum = nullptr;  // [tokens, expert width]
    LinearInput latent_down_in;
    LinearInput latent_up_in;
    LinearInput router_in;
    LinearInput expert_in;
    float* scaled = nullptr;   // [tokens, padded hidden], where weights multiply inputs
    int64_t shared_bytes = 0;  // of the shared experts' own scratch
    // Where the shared experts' output is scaled: it and its logits.
    float* shared = nullptr;         // [tokens, hidden]
    float* shared_logits = nullptr;  // [tokens]
    LinearInput shared_gate_in;
    OneForAll one;
  };

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

  Experts(const ModelConfig& config, int32_t layer)
      : config_(config), layer_(config.layers[static_cast<size_t>(layer)]) {}

  Expected<void> load_router(const std::string& prefix, int32_t bits, WeightStore& weights);
  Expected<void> load_experts(const std::string& prefix, int32_t bits, WeightStore& weights);
  Expected<void> load_latents(const std::string& prefix, int32_t bits, WeightStore& weights);
  // Checks that the last expert has the same formats as the first.
  static Expected<void> check_like_first(
      const std::vector<Pair>& experts,
      const std::function<std::string(const std::string&)>& place_of,
      bool on_device);
  static GroupedByFormat group_experts(const std::vector<Pair>& experts,
                                       Projection Pair::*projection,
                                       int64_t part_width);
  [[nodiscard]] int32_t max_rows(int32_t tokens) const;

  Buffers layout(const StepBounds& bounds, Arena& arena) const;
  // Chooses the experts of rows x, and returns the places of (token, choice) pairs among the rows
  // that experts read.
  [[nodiscard]] std::span<const int32_t> route(const ForwardContext& context,
                                               const FfnInput& in) const;
  // Runs the chosen experts' matrices over their rows.
  void run_experts(const kernels::ExecContext& exec,
                   const GroupedByFormat& grouped,
                   const LinearInput& in,
                   ProjectionOutput out,
                   kernels::Segments segments = {}) const;
  // Fills the rows of `down` from gate and up.
  void fill_down_in(const ForwardContext& context,
                    const LinearInput& down_in,
                    std::span<const int32_t> rows) const;
  void join_experts(const ForwardContext& context, const LinearInput& in) const;
  void add_shared(const ForwardContext& context, const FfnInput& in, const HalfOutput& out) const;
  // Weighs the one choice of every token by its logit.
  void choose_one(const ForwardContext& context,
                  const float* logits,
                  kernels::RouterScore score) const;
  // Scales every token's row by the weight of its only expert, whose output then has weight 1.
  void scale_inputs(const ForwardContext& context, const FfnInput& in) const;
  // Leads every token's row to the experts' width, and the sum of their outputs back.
  void narrow_inputs(const ForwardContext& context, const FfnInput& in) const;
  void add_widened(const ForwardContext& context, const HalfOutput& out) const;

  [[nodiscard]] bool is_gated() const { return kernels::is_gated(config_.gate_function); }

  // The width of what an expert reads and writes.
  [[nodiscard]] int32_t expert_width() const {
    return config_.moe.latent > 0 ? config_.moe.latent : config_.hidden;
  }

  [[nodiscard]] int64_t gate_up_stride() const {
    return (is_gated() ? 2 : 1) * int64_t{layer_.ffn_hidden};
  }

  const ModelConfig& config_;
  const LayerConfig& layer_;
  Projection router_;
  DeviceFloats choice_bias_;
  DeviceFloats expert_scales_;
  std::vector<Pair> experts_;
  GroupedByFormat grouped_gate_up_;
  GroupedByFormat grouped_down_;
  std::vector<kernels::ExpertMatrix> joined_down_;  // one per expert, with its bias
  std::unique_ptr<DenseFfn> shared_;
  Projection shared_gate_;  // of one row; empty: the shared experts' output is added as it is
  Projection latent_down_;  // these two are empty where experts have the model's width
  Projection latent_up_;
  Buffers buffers_;
};

}  // namespace sluice
