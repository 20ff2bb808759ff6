// SPDX-License-Identifier: Apache-2.0
// The mixer of Mamba-2: one projection, a short convolution over time, the recurrence of each head,
// a gate and a norm by groups, the output projection. It keeps the last inputs of the convolution
// and a state of each head.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/models/halves.h"
#include "engine/models/rank_share.h"

namespace sluice {

class MambaMixer final : public Mixer {
 public:
  // `config` must outlive it. kUnsupported: the device has no such kernels, or sizes are not
  // multiples of their lanes.
  static Expected<std::unique_ptr<Mixer>> load(const ModelConfig& config,
                                               int32_t layer,
                                               int32_t activation_bits,
                                               WeightStore& weights);

  [[nodiscard]] KvGroupSpec group(DType dtype) const override;

  [[nodiscard]] const Projection& input() const override { return in_; }

  [[nodiscard]] int64_t scratch_bytes(const StepBounds& bounds) const override;
  void bind(const StepBounds& bounds, std::span<std::byte> scratch) override;
  void forward(const ForwardContext& context,
               const LayerCache& cache,
               const kernels::RopeTable* rope,
               const LinearInput& in,
               const HalfOutput& out) const override;

  void read_ahead(const ForwardContext&, const LayerCache&) const override {}

 private:
  // A row is [z | x | B | C | dt | decay | output]: the output's gates, what is convolved, the
  // steps of each head and what they make of its state, and what the recurrence gives. A rank has
  // its own heads and their groups, and dt of all: a head's is one row of the matrix, and shares
  // are whole tiles of them.
  struct Buffers {
    float* rows = nullptr;
    float* sums = nullptr;  // of squares: [tokens, all heads]
    LinearInput out_in;
    RankParts parts;
  };

  MambaMixer(const ModelConfig& config, const MambaShare& share);

  Expected<void> load_projections(const std::string& prefix, int32_t bits, WeightStore& weights);
  Expected<void> load_conv_weights(const std::string& prefix, WeightStore& weights);
  Expected<void> load_vectors(const std::string& prefix, WeightStore& weights);
  Buffers layout(const StepBounds& bounds, Arena& arena) const;
  void project_rows(const ForwardContext& context, const LinearInput& in) const;
  void run_mamba(const ForwardContext& context, const LayerCache& cache) const;
  void add_scales(int32_t num_rows, kernels::RowSteps& steps) const;
  bool run_norm(const ForwardContext& context, const LinearInput& out_in) const;
  void run_gate(const ForwardContext& context, const LinearInput& out_in) const;

  [[nodiscard]] int32_t inner() const { return heads_.count * mamba_.head_dim; }

  [[nodiscard]] int32_t of_groups() const { return groups_.count * mamba_.state_dim; }

  [[nodiscard]] int32_t channels() const { return inner() + 2 * of_groups(); }

  [[nodiscard]] int32_t projected() const { return inner() + channels() + mamba_.num_heads; }

  // The output's place in a row, and a row, whose end the gate may overwrite.
  [[nodiscard]] int64_t output_column() const { return projected() + heads_.count; }

  [[nodiscard]] int64_t stride() const {
    return output_column() + align_up(int64_t{inner()}, kQuantGroup);
  }

  const ModelConfig& config_;
  const MambaConfig& mamba_;
  const Portion heads_;     // this rank's
  const Portion groups_;    // those of its heads
  const bool joins_norms_;  // a group's heads may lie on several ranks
  Projection in_;
  Projection out_;
  DeviceFloats conv_;       // [taps][channels]
  DeviceFloats conv_bias_;  // empty: none
  DeviceFloats rate_, dt_bias_, skip_, norm_;
  Buffers buffers_;
};

}  // namespace sluice
