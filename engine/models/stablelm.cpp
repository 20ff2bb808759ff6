// SPDX-License-Identifier: Apache-2.0
// StableLM (1.6B, 3B): norms subtract the mean and have biases, a part of each head rotates. The
// 12B, whose heads have a norm each, is refused by its tensors.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kStableLmDefaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 32U},
    {"max_position_embeddings", 4096U},
    {"layer_norm_eps", 1e-5},
    {"partial_rotary_factor", 0.25},
};

constexpr std::string_view kStableLmHfKeys[] = {"layer_norm_eps", "use_qkv_bias"};

Expected<void> configure_stablelm(const Checkpoint&, ModelConfig& config) {
  config.norm_bias = true;
  return {};
}

}  // namespace

extern const ModelSpec kStableLmSpec;
const ModelSpec kStableLmSpec = {.files = {.gguf = "stablelm",
                                           .model_type = "stablelm",
                                           .class_name = "StableLmForCausalLM",
                                           .defaults = kStableLmDefaults,
                                           .layer_types = LayerTypes::kFull,
                                           .is_partly_rotated = true,
                                           .subtracts_mean = true},
                                 .configure = configure_stablelm,
                                 .build = build_decoder,
                                 .hf_keys = kStableLmHfKeys};

}  // namespace sluice
