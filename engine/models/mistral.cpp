// SPDX-License-Identifier: Apache-2.0
// Mistral: Llama with one window for all layers if the checkpoint sets one.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kMistralDefaults[] = {
    {"hidden_size", 4096U},
    {"intermediate_size", 14336U},
    {"num_hidden_layers", 32U},
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-6},
    {"sliding_window", 4096U},
};

Expected<void> configure_mistral(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr int32_t kNever = 1 << 30;
  return read_window_pattern(checkpoint, kNever, config);
}

}  // namespace

extern const ModelSpec kMistralSpec;
const ModelSpec kMistralSpec = {.files = {.gguf = "llama",
                                          .reads_gguf = false,
                                          .model_type = "mistral",
                                          .class_name = "MistralForCausalLM",
                                          .defaults = kMistralDefaults,
                                          .layer_types = LayerTypes::kAsTheWindow,
                                          .may_be_encoder = true},
                                .configure = configure_mistral,
                                .build = build_decoder};

}  // namespace sluice
