// SPDX-License-Identifier: Apache-2.0
// The mixer of short convolutions: a projection to [gate before | gate after | values], a
// convolution over time of the gated values, the output projection. It keeps the last inputs of the
// convolution.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/models/halves.h"
#include "engine/models/rank_share.h"

namespace sluice {

class ShortConvMixer final : public Mixer {
 public:
  // `config` must outlive it. kUnsupported: the device has no such kernel.
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
  struct Buffers {
    float* rows = nullptr;    // [tokens, 3 * channels]
    float* output = nullptr;  // [tokens, channels]
    LinearInput out_in;
    RankParts parts;
  };

  ShortConvMixer(const ModelConfig& config, const LayerShare& share)
      : config_(config), channels_(own_or_all(share.heads, config.hidden)) {}

  Expected<void> load_conv_weights(const std::string& prefix, WeightStore& weights);
  Buffers layout(const StepBounds& bounds, Arena& arena) const;

  const ModelConfig& config_;
  const Portion channels_;  // this rank's
  Projection in_;
  Projection out_;
  DeviceFloats conv_;  // [taps][channels]
  DeviceFloats bias_;  // empty: none
  Buffers buffers_;
};

}  // namespace sluice
