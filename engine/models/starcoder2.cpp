// SPDX-License-Identifier: Apache-2.0
// StarCoder2: norms subtract the mean and have biases, and a feed-forward half is two matrices
// around a function.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kStarCoder2Defaults[] = {
    {"num_attention_heads", 24U},
    {"num_key_value_heads", 2U},
    {"max_position_embeddings", 4096U},
    {"norm_epsilon", 1e-5},
    {"use_bias", true},
    {"hidden_act", "gelu_pytorch_tanh"},
};

constexpr TensorName kStarCoder2Names[] = {
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};

constexpr std::string_view kStarCoder2HfKeys[] = {"norm_epsilon", "use_bias"};

Expected<void> configure_starcoder2(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_bias = true;
  if (checkpoint.is_dummy()) config.mlp_bias = config.qkv_bias;
  SLUICE_TRY(const int32_t window, read_window(checkpoint.metadata()));
  for (LayerConfig& layer : config.layers) layer.window = window;
  return {};
}

}  // namespace

extern const ModelSpec kStarCoder2Spec;
const ModelSpec kStarCoder2Spec = {.files = {.gguf = "starcoder2",
                                             .model_type = "starcoder2",
                                             .class_name = "Starcoder2ForCausalLM",
                                             .defaults = kStarCoder2Defaults,
                                             .layer_types = LayerTypes::kAsTheWindow,
                                             .ties_embedding = true,
                                             .names = kStarCoder2Names,
                                             .subtracts_mean = true,
                                             .is_gated = false,
                                             .function = "gelu_new"},
                                   .configure = configure_starcoder2,
                                   .build = build_decoder,
                                   .hf_keys = kStarCoder2HfKeys};

}  // namespace sluice
