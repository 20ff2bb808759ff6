// SPDX-License-Identifier: Apache-2.0
// SmolLM3: Llama whose every fourth layer (or as listed) has no positions.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kSmolLm3Defaults[] = {
    {"num_attention_heads", 16U},
    {"num_key_value_heads", 4U},
    {"max_position_embeddings", 32768U},
    {"rms_norm_eps", 1e-6},
    {"rope_theta", 2e6},
};

constexpr std::string_view kSmolLm3HfKeys[] = {"mlp_bias", "use_sliding_window", "no_rope_layers"};

Expected<void> configure_smollm3(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const int32_t period, metadata.get_count_or("no_rope_layer_interval", 1024, 4));
  std::vector<double> rotated;
  if (metadata.has("no_rope_layers")) {
    SLUICE_TRY(rotated, metadata.get_numbers("no_rope_layers"));
    if (rotated.size() != config.layers.size()) {
      return metadata.wrong("no_rope_layers",
                            std::to_string(rotated.size()) + " elements",
                            std::to_string(config.num_layers));
    }
  }
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const bool rotates =
        rotated.empty() ? (i + 1) % static_cast<size_t>(period) != 0 : rotated[i] != 0;
    if (!rotates) config.layers[i].rope = -1;
  }
  return read_optional_window(checkpoint, config);
}

}  // namespace

extern const ModelSpec kSmolLm3Spec;
const ModelSpec kSmolLm3Spec = {.files = {.gguf = "smollm3",
                                          .model_type = "smollm3",
                                          .class_name = "SmolLM3ForCausalLM",
                                          .defaults = kSmolLm3Defaults,
                                          .ties_embedding = true,
                                          .pairs_rows_in_gguf = true},
                                .configure = configure_smollm3,
                                .build = build_decoder,
                                .hf_keys = kSmolLm3HfKeys};

}  // namespace sluice
