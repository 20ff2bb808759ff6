// SPDX-License-Identifier: Apache-2.0
// The mixer of gated delta layers: projections, a short convolution over time, the delta rule, a
// norm of each head behind a gate, the output projection. It keeps the last inputs of the
// convolution and the matrices of the delta rule: one state a request.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/models/halves.h"
#include "engine/models/rank_share.h"
#include "engine/models/state_rows.h"

namespace sluice {

class DeltaMixer final : public Mixer {
 public:
  // `config` must outlive it. kUnsupported: the device has no such kernels, or a head's width is
  // none of theirs.
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
  // A row is [q | k | v | z | b | a | output]: what is convolved, the output's gates, the gates of
  // each head or channel, and what the delta rule gives. A rank has its own heads, but b and a
  // head's a of all: they are one row of a matrix, and shares are whole tiles of them.
  struct Buffers {
    float* rows = nullptr;
    float* narrow = nullptr;  // [tokens, 2 * gate_rank], where channels decay apart
    LinearInput narrow_in;
    float* stored = nullptr;  // rows in the file's order, where it differs
    float* gated = nullptr;   // the output as floats, before ranks know its scale
    LinearInput out_in;
    RankParts parts;
  };

  DeltaMixer(const ModelConfig& config, const LayerShare& share);

  Expected<void> load_input(const std::string& prefix, int32_t bits, WeightStore& weights);
  Expected<std::vector<float>> load_conv_parts(const std::string& prefix,
                                               WeightStore& weights) const;
  Expected<void> load_conv_weights(const std::string& prefix, WeightStore& weights);
  Expected<void> load_vectors(const std::string& prefix, WeightStore& weights);
  Expected<void> load_narrow(const std::string& prefix, int32_t bits, WeightStore& weights);
  [[nodiscard]] std::vector<int32_t> columns_by_key_head(bool joins_gates, bool joins_betas) const;
  Buffers layout(const StepBounds& bounds, Arena& arena) const;
  void project_rows(const ForwardContext& context, const LinearInput& in) const;
  void project_narrow(const ForwardContext& context, const LinearInput& in) const;
  void run_delta(const ForwardContext& context, const LayerCache& cache) const;

  // All but the output's gates.
  [[nodiscard]] ReplayedColumns replayed_columns() const {
    return {{{0, channels()}, {channels() + values(), delta_.num_value_heads + decays()}}};
  }

  void run_output(const ForwardContext& context, const HalfOutput& out) const;

  [[nodiscard]] int32_t keys() const { return key_heads_.count * delta_.key_dim; }

  [[nodiscard]] int32_t values() const { return value_heads_.count * delta_.value_dim; }

  [[nodiscard]] int32_t channels() const { return 2 * keys() + values(); }

  // Those of a row: of every head, or of each channel of the own heads' keys.
  [[nodiscard]] int32_t decays() const {
    return delta_.decays_channels() ? value_heads_.count * delta_.key_dim : delta_.num_value_heads;
  }

  // Projected columns of a row, and all of them.
  [[nodiscard]] int32_t projected() const {
    return channels() + values() + delta_.num_value_heads + decays();
  }

  [[nodiscard]] int64_t stride() const { return projected() + values(); }

  const ModelConfig& config_;
  const DeltaConfig& delta_;
  const Portion value_heads_;  // this rank's
  const Portion key_heads_;    // those that they read
  Projection in_;
  Projection out_;
  // Where channels decay apart: of what in_ gives last but one and last.
  Projection decays_, gates_;
  DeviceFloats conv_;  // [taps][channels]
  DeviceFloats rate_, dt_bias_, norm_;
  std::vector<int32_t> key_of_value_;  // by value head, both counted among this rank's
  DeviceInts key_heads_read_;          // the same, for operators
  DeviceInts columns_;                 // of the stored row, by column; empty: the same
  int32_t stored_ = 0;                 // columns of a stored row
  Buffers buffers_;
};

}  // namespace sluice
