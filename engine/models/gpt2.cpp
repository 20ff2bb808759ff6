// SPDX-License-Identifier: Apache-2.0
// GPT-2, and StarCoder, which is GPT-2 with one KV head: each position adds a learned row in the
// place of rotations.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kGpt2Defaults[] = {
    {"num_hidden_layers", 12U},
    {"hidden_size", 768U},
    {"num_attention_heads", 12U},
    {"n_positions", 1024U},
    {"layer_norm_epsilon", 1e-5},
    {"attention_bias", true},
};

constexpr KeyDefault kBigCodeDefaults[] = {
    {"num_hidden_layers", 12U},
    {"hidden_size", 768U},
    {"num_attention_heads", 12U},
    {"num_key_value_heads", 1U},
    {"n_positions", 1024U},
    {"layer_norm_epsilon", 1e-5},
    {"attention_bias", true},
};

constexpr RequiredNumber kGpt2Required[] = {
    {"scale_attn_weights", 1}, {"scale_attn_by_inverse_layer_idx", 0}, {"add_cross_attention", 0}};

constexpr RequiredNumber kBigCodeRequired[] = {
    {"multi_query", 1}, {"scale_attn_weights", 1}, {"add_cross_attention", 0}};

// The files that were published first have no "transformer." in front.
constexpr TensorName kGpt2Names[] = {
    {"transformer.wte.weight", "token_embd.weight"},
    {"wte.weight", "token_embd.weight"},
    {"transformer.wpe.weight", "position_embd.weight"},
    {"wpe.weight", "position_embd.weight"},
    {"transformer.ln_f.weight", "output_norm.weight"},
    {"ln_f.weight", "output_norm.weight"},
    {"transformer.ln_f.bias", "output_norm.bias"},
    {"ln_f.bias", "output_norm.bias"},
    {"ln_1", "attn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"ln_2", "ffn_norm"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};

constexpr std::string_view kBigCodeHfKeys[] = {
    "layer_norm_epsilon", "n_inner", "activation_function", "multi_query"};

Expected<void> configure_gpt2(const Checkpoint& checkpoint, ModelConfig& config) {
  take_biases(checkpoint, config);
  take_usual_width(config);
  take_positions(0, config);
  return {};
}

}  // namespace

extern const ModelSpec kGpt2Spec;
const ModelSpec kGpt2Spec = {.files = {.gguf = "gpt2",
                                       .model_type = "gpt2",
                                       .class_name = "GPT2LMHeadModel",
                                       .defaults = kGpt2Defaults,
                                       .required = kGpt2Required,
                                       .layer_types = LayerTypes::kFull,
                                       .ties_embedding = true,
                                       .names = kGpt2Names,
                                       .layers_place = "transformer.h.",
                                       .subtracts_mean = true,
                                       .is_gated = false,
                                       .function = "gelu_new",
                                       .is_transposed = true},
                             .configure = configure_gpt2,
                             .build = build_decoder};

extern const ModelSpec kBigCodeSpec;
const ModelSpec kBigCodeSpec = {.files = {.gguf = "starcoder",
                                          .model_type = "gpt_bigcode",
                                          .class_name = "GPTBigCodeForCausalLM",
                                          .defaults = kBigCodeDefaults,
                                          .required = kBigCodeRequired,
                                          .layer_types = LayerTypes::kFull,
                                          .ties_embedding = true,
                                          .names = kGpt2Names,
                                          .layers_place = "transformer.h.",
                                          .subtracts_mean = true,
                                          .is_gated = false,
                                          .function = "gelu_pytorch_tanh"},
                                .configure = configure_gpt2,
                                .build = build_decoder,
                                .hf_keys = kBigCodeHfKeys};

}  // namespace sluice
