// SPDX-License-Identifier: Apache-2.0
// Llama-Nemotron (Super 49B), which a search has made from Llama 3.3: its layers differ in KV heads
// and in columns of their dense halves, and some are one of the two halves alone.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kNemotronNasDefaults[] = {
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
};

Expected<void> configure_nemotron_nas(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr const char* kHeads = "attention.layers_head_count_kv";
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const std::vector<double> kv_heads, metadata.get_numbers(kHeads));
  SLUICE_TRY(const std::vector<double> widths,
             metadata.get_numbers("layers_feed_forward_length"));
  if (kv_heads.size() != config.layers.size()) {
    return metadata.wrong(kHeads,
                          std::to_string(kv_heads.size()) + " elements",
                          "one for each of " + std::to_string(config.num_layers) + " layers");
  }
  config.fused_gate_up = false;  // the first layer may have neither of the two
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    const auto width = static_cast<int32_t>(widths[i]);
    if (kv_heads[i] == 0 && width == 0) {
      return metadata.wrong(
          kHeads, "neither half of layer " + std::to_string(i), "one of them or both");
    }
    if (kv_heads[i] == 0) {
      layer.mixer = MixerKind::kNone;
    } else {
      layer.num_kv_heads = static_cast<int32_t>(kv_heads[i]);
    }
    layer.ffn = width == 0 ? FfnKind::kNone : FfnKind::kDense;
    layer.ffn_hidden = width;
    config.ffn_hidden = std::max(config.ffn_hidden, width);
  }
  return {};
}

}  // namespace

extern const ModelSpec kNemotronNasSpec;
const ModelSpec kNemotronNasSpec = {.files = {.model_type = "nemotron-nas",
                                              .class_name = "DeciLMForCausalLM",
                                              .defaults = kNemotronNasDefaults,
                                              .layer_types = LayerTypes::kFull,
                                              .has_unlike_layers = true},
                                    .configure = configure_nemotron_nas,
                                    .build = build_decoder};

}  // namespace sluice
