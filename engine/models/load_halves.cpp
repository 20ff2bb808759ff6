// SPDX-License-Identifier: Apache-2.0
#include "engine/models/load_halves.h"

#include <algorithm>
#include <string>

#include "engine/models/attention_mixer.h"
#include "engine/models/delta_mixer.h"
#include "engine/models/dense_beside_experts.h"
#include "engine/models/dense_ffn.h"
#include "engine/models/experts.h"
#include "engine/models/latent_mixer.h"
#include "engine/models/mamba_mixer.h"
#include "engine/models/short_conv_mixer.h"

namespace sluice {
namespace {

// Attention and Mamba-2 on the same rows: the order of the sum is Mamba-2's output, then
// attention's.
class AttentionBesideMamba final : public Mixer {
 public:
  static Expected<std::unique_ptr<Mixer>> load(const ModelConfig& config,
                                               int32_t layer,
                                               int32_t activation_bits,
                                               WeightStore& weights) {
    auto both = std::make_unique<AttentionBesideMamba>();
    both->place_ = static_cast<size_t>(config.num_layers + layer);
    both->has_ranks_ = config.share.size > 1;
    SLUICE_TRY(both->mamba_, MambaMixer::load(config, layer, activation_bits, weights));
    SLUICE_TRY(both->attention_, AttentionMixer::load(config, layer, activation_bits, weights));
    const std::string place = weights.place_of("blk." + std::to_string(layer) + ".mamba_in.weight");
    SLUICE_TRY_VOID(both->input_.share_input_scales(both->attention_->input(), place));
    SLUICE_TRY_VOID(both->input_.share_input_scales(both->mamba_->input(), place));
    return both;
  }

  [[nodiscard]] KvGroupSpec group(DType dtype) const override { return attention_->group(dtype); }

  [[nodiscard]] const Projection& input() const override { return input_; }

  [[nodiscard]] const Mixer* beside() const override { return mamba_.get(); }

  // One runs after the other, but other ranks may still read the first one's part.
  [[nodiscard]] int64_t scratch_bytes(const StepBounds& bounds) const override {
    const int64_t of_attention = attention_->scratch_bytes(bounds);
    const int64_t of_mamba = mamba_->scratch_bytes(bounds);
    return has_ranks_ ? of_attention + of_mamba : std::max(of_attention, of_mamba);
  }

  void bind(const StepBounds& bounds, std::span<std::byte> scratch) override {
    attention_->bind(bounds, scratch);
    const int64_t first = has_ranks_ ? attention_->scratch_bytes(bounds) : 0;
    mamba_->bind(bounds, scratch.subspan(static_cast<size_t>(first)));
  }

  void forward(const ForwardContext& context,
               const LayerCache& cache,
               const kernels::RopeTable* rope,
               const LinearInput& in,
               const HalfOutput& out) const override {
    const kernels::RowSteps nothing;
    const LayerCache& states = context.caches[place_];
    mamba_->forward(context, states, nullptr, in, {out.rows, out.epilogue, nothing});
    attention_->forward(
        context, cache, rope, in, {out.rows, kernels::Epilogue::kAdd, out.then});
  }

  void read_ahead(const ForwardContext& context, const LayerCache& cache) const override {
    attention_->read_ahead(context, cache);
  }

 private:
  size_t place_ = 0;  // of the states among the caches
  bool has_ranks_ = false;
  Projection input_;  // without matrices: what both read
  std::unique_ptr<Mixer> mamba_;
  std::unique_ptr<Mixer> attention_;
};

}  // namespace

Expected<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& config,
                                            int32_t layer,
                                            int32_t activation_bits,
                                            WeightStore& weights) {
  switch (config.layers[static_cast<size_t>(layer)].mixer) {
    case MixerKind::kAttention:
      return AttentionMixer::load(config, layer, activation_bits, weights);
    case MixerKind::kDelta:
      return DeltaMixer::load(config, layer, activation_bits, weights);
    case MixerKind::kShortConv:
      return ShortConvMixer::load(config, layer, activation_bits, weights);
    case MixerKind::kMamba2:
      return MambaMixer::load(config, layer, activation_bits, weights);
    case MixerKind::kAttentionBesideMamba2:
      return AttentionBesideMamba::load(config, layer, activation_bits, weights);
    case MixerKind::kLatent:
      return LatentMixer::load(config, layer, activation_bits, weights);
    case MixerKind::kNone:
      return nullptr;
  }
  SLUICE_UNREACHABLE("a kind of mixer");
}

Expected<std::unique_ptr<Ffn>> load_ffn(const ModelConfig& config,
                                        int32_t layer,
                                        int32_t activation_bits,
                                        WeightStore& weights) {
  switch (config.layers[static_cast<size_t>(layer)].ffn) {
    case FfnKind::kDense:
      return DenseFfn::load(config, layer, activation_bits, weights);
    case FfnKind::kExperts:
      return Experts::load(config, layer, activation_bits, weights);
    case FfnKind::kBoth:
      return DenseBesideExperts::load(config, layer, activation_bits, weights);
    case FfnKind::kNone:
      return nullptr;
  }
  SLUICE_UNREACHABLE("a kind of feed-forward half");
}

}  // namespace sluice
