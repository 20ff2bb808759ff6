// SPDX-License-Identifier: Apache-2.0
#include "engine/models/decoder_layer.h"

#include <string>
#include <utility>

#include "engine/models/load_halves.h"

namespace sluice {
namespace {

Expected<void> load_norms(const ModelConfig& config,
                          int32_t index,
                          WeightStore& weights,
                          DecoderLayer& layer) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const auto load = [&](const char* name) {
    return load_stream_norm(config, prefix + name, weights);
  };
  const bool is_after = config.layers[static_cast<size_t>(index)].norms_outputs;
  const NormPlacement placement = is_after ? NormPlacement::kAfter : config.norm_placement;
  if (placement != NormPlacement::kAfter) {
    // Nemotron-NAS calls it by its half's name where there is only the second one.
    const bool is_second = layer.mixer == nullptr && !weights.has(prefix + "attn_norm.weight");
    SLUICE_TRY(layer.before_mixer, load(is_second ? "ffn_norm" : "attn_norm"));
  }
  const bool are_two = layer.mixer != nullptr && layer.ffn != nullptr;
  const bool share_one = config.parallel_halves && !config.parallel_norms;
  if (weights.has(prefix + "attn_norm_2.weight")) {  // Falcon's, beside that of the other half
    layer.before_ffn = std::move(layer.before_mixer);
    SLUICE_TRY(layer.before_mixer, load("attn_norm_2"));
  } else if (placement != NormPlacement::kAfter && !share_one && are_two) {
    SLUICE_TRY(layer.before_ffn, load("ffn_norm"));
  }
  if (placement != NormPlacement::kBefore) {
    // transformers writes all layers' names of OLMo-Hybrid as those of delta layers.
    const bool has_other_name = is_after && !weights.has(prefix + "post_attention_norm.weight");
    SLUICE_TRY(layer.after_mixer, load(has_other_name ? "ffn_norm" : "post_attention_norm"));
    SLUICE_TRY(layer.after_ffn, load("post_ffw_norm"));
  }
  return {};
}

}  // namespace

Expected<DecoderLayer> load_decoder_layer(const ModelConfig& config,
                                          int32_t index,
                                          int32_t activation_bits,
                                          WeightStore& weights) {
  DecoderLayer layer;
  SLUICE_TRY(layer.mixer, load_mixer(config, index, activation_bits, weights));
  SLUICE_TRY(layer.ffn, load_ffn(config, index, activation_bits, weights));
  SLUICE_TRY_VOID(load_norms(config, index, weights, layer));
  if (!config.layer_scales) return layer;
  SLUICE_TRY(const std::vector<float> scale,
             weights.vector("blk." + std::to_string(index) + ".layer_output_scale.weight", 1));
  layer.scale = scale.front();
  return layer;
}

}  // namespace sluice
