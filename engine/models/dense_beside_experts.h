// SPDX-License-Identifier: Apache-2.0
// A feed-forward half of a gated pair of matrices and of experts, which read the same stream, each
// through a norm of its own, and whose outputs are normed before they are added (Gemma 4). The
// router reads the stream through a third norm.
#pragma once

#include <memory>

#include "engine/models/dense_ffn.h"
#include "engine/models/experts.h"
#include "engine/models/output_layer.h"

namespace sluice {

class DenseBesideExperts final : public Ffn {
 public:
  // `config` must outlive it.
  static Expected<std::unique_ptr<Ffn>> load(const ModelConfig& config,
                                             int32_t layer,
                                             int32_t activation_bits,
                                             WeightStore& weights);

  [[nodiscard]] const Projection* input() const override { return dense_->input(); }

  [[nodiscard]] bool reads_plain() const override { return false; }

  [[nodiscard]] int64_t max_sent_rows(int32_t tokens) const override {
    return experts_->max_sent_rows(tokens);
  }

  [[nodiscard]] int64_t scratch_bytes(const StepBounds& bounds) const override;
  void bind(const StepBounds& bounds, std::span<std::byte> scratch) override;
  // Stores: such a layer's output is normed before it is added.
  void forward(const ForwardContext& context,
               const FfnInput& in,
               const HalfOutput& out) const override;

 private:
  struct Buffers {
    // Apart, since ranks may still read what the dense half has sent.
    std::span<std::byte> dense;
    std::span<std::byte> experts;
    float* normed = nullptr;  // [tokens, padded hidden] what experts read
    float* routed = nullptr;  // [tokens, padded hidden] what the router reads
    float* output = nullptr;  // [tokens, hidden] of the experts
  };

  explicit DenseBesideExperts(const ModelConfig& config) : config_(config) {}

  Buffers layout(const StepBounds& bounds, Arena& arena) const;

  [[nodiscard]] int64_t padded_hidden() const { return align_up(config_.hidden, kQuantGroup); }

  const ModelConfig& config_;
  std::unique_ptr<DenseFfn> dense_;
  std::unique_ptr<Experts> experts_;
  StreamNorm before_experts_;
  StreamNorm before_router_;
  StreamNorm after_dense_;
  StreamNorm after_experts_;
  Buffers buffers_;
};

}  // namespace sluice
