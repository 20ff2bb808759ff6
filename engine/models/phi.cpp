// SPDX-License-Identifier: Apache-2.0
// Phi-1, 1.5 and 2: both halves of a layer read one norm's output, a part of each head rotates, and
// all matrices have biases.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kPhiDefaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_eps", 1e-5},
    {"partial_rotary_factor", 0.5},
};

constexpr RequiredNumber kPhiRequired[] = {{"qk_layernorm", 0}};

constexpr TensorName kPhiNames[] = {
    {"model.final_layernorm.weight", "output_norm.weight"},
    {"model.final_layernorm.bias", "output_norm.bias"},
    {"self_attn.dense", "attn_output"},
    {"mlp.fc1", "ffn_up"},
    {"mlp.fc2", "ffn_down"},
};

constexpr std::string_view kPhiHfKeys[] = {"layer_norm_eps"};

Expected<void> configure_phi(const Checkpoint& checkpoint, ModelConfig& config) {
  take_biases(checkpoint, config);
  config.qkv_bias = true;
  config.attention_out_bias = true;
  config.parallel_halves = true;
  config.output_bias = !config.tied_embeddings;
  return {};
}

}  // namespace

extern const ModelSpec kPhiSpec;
const ModelSpec kPhiSpec = {.files = {.gguf = "phi2",
                                      .model_type = "phi",
                                      .class_name = "PhiForCausalLM",
                                      .defaults = kPhiDefaults,
                                      .required = kPhiRequired,
                                      .layer_types = LayerTypes::kFull,
                                      .is_partly_rotated = true,
                                      .names = kPhiNames,
                                      .subtracts_mean = true,
                                      .is_gated = false,
                                      .function = "gelu_new"},
                            .configure = configure_phi,
                            .build = build_decoder,
                            .hf_keys = kPhiHfKeys};

}  // namespace sluice
