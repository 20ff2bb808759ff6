// SPDX-License-Identifier: Apache-2.0
#include "engine/models/load_halves.h"

#include "engine/models/attention_mixer.h"
#include "engine/models/delta_mixer.h"
#include "engine/models/dense_beside_experts.h"
#include "engine/models/dense_ffn.h"
#include "engine/models/experts.h"
#include "engine/models/latent_mixer.h"
#include "engine/models/mamba_mixer.h"
#include "engine/models/short_conv_mixer.h"

namespace sluice {

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
    case MixerKind::kLatent:
      return LatentMixer::load(config, layer, activation_bits, weights);
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
  }
  SLUICE_UNREACHABLE("a kind of feed-forward half");
}

}  // namespace sluice
