// SPDX-License-Identifier: Apache-2.0
// A feed-forward half of one gated pair of matrices, which shared experts are as well, or of one
// matrix and a function without a gate.
#pragma once

#include <memory>
#include <string>

#include "engine/models/halves.h"
#include "engine/models/rank_share.h"

namespace sluice {

class DenseFfn final : public Ffn {
 public:
  // The half of a dense layer; the shared experts of another, as one; and the half beside experts.
  // `config` must outlive them.
  static Expected<std::unique_ptr<DenseFfn>> load(const ModelConfig& config,
                                                  int32_t layer,
                                                  int32_t activation_bits,
                                                  WeightStore& weights);
  static Expected<std::unique_ptr<DenseFfn>> load_shared(const ModelConfig& config,
                                                         int32_t layer,
                                                         int32_t activation_bits,
                                                         WeightStore& weights);
  static Expected<std::unique_ptr<DenseFfn>> load_beside(const ModelConfig& config,
                                                         int32_t layer,
                                                         int32_t activation_bits,
                                                         WeightStore& weights);

  [[nodiscard]] const Projection* input() const override { return &gate_up_; }

  [[nodiscard]] bool reads_plain() const override { return false; }

  [[nodiscard]] int64_t max_sent_rows(int32_t tokens) const override { return tokens; }

  [[nodiscard]] int64_t scratch_bytes(const StepBounds& bounds) const override;
  void bind(const StepBounds& bounds, std::span<std::byte> scratch) override;
  void forward(const ForwardContext& context,
               const FfnInput& in,
               const HalfOutput& out) const override;

 private:
  struct Buffers {
    float* gate_up = nullptr;  // [tokens, 2 * width], or [tokens, width] without a gate
    LinearInput down_in;
    RankParts parts;
    float* gated = nullptr;  // [tokens, padded width] unquantized, if ranks share its scale
  };

  // Where a pair's tensors are: their stems, this rank's width and its columns.
  struct Place {
    std::string gate, up, down;
    int32_t width = 0;
    Portion columns;
    bool has_bias = false;
    bool is_fused = false;  // `up` has the rows of gate, then of up
    float limit = 0;        // LayerConfig::dense_limit
    kernels::Xielu xielu = {};
  };

  DenseFfn(const ModelConfig& config, const Place& place)
      : config_(config), width_(place.width), limit_(place.limit), xielu_(place.xielu) {}

  static Expected<std::unique_ptr<DenseFfn>> load_pair(const ModelConfig& config,
                                                       const Place& place,
                                                       int32_t activation_bits,
                                                       WeightStore& weights);
  Buffers layout(const StepBounds& bounds, Arena& arena) const;

  [[nodiscard]] bool is_gated() const { return kernels::is_gated(config_.gate_function); }

  [[nodiscard]] int64_t gate_up_stride() const { return (is_gated() ? 2 : 1) * int64_t{width_}; }

  const ModelConfig& config_;
  int32_t width_;
  float limit_;
  kernels::Xielu xielu_;
  Projection gate_up_;
  Projection down_;
  Buffers buffers_;
};

// Returns the same rows as plain floats.
kernels::Activations as_floats(kernels::Activations rows, float* data);

}  // namespace sluice
