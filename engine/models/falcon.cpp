// SPDX-License-Identifier: Apache-2.0
// Falcon (7B, 40B, 11B): halves side by side read one norm's output or have a norm each. Falcon 3
// is a Llama.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kFalconDefaults[] = {
    {"num_hidden_layers", 32U},
    {"hidden_size", 4544U},
    {"num_attention_heads", 71U},
    {"num_key_value_heads", 1U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_epsilon", 1e-5},
};

constexpr RequiredNumber kFalconRequired[] = {
    {"alibi", 0}, {"multi_query", 1}, {"parallel_attn", 1}};

constexpr TensorName kFalconNames[] = {
    {"transformer.word_embeddings.weight", "token_embd.weight"},
    {"transformer.ln_f.weight", "output_norm.weight"},
    {"transformer.ln_f.bias", "output_norm.bias"},
    {"ln_attn", "attn_norm_2"},
    {"ln_mlp", "attn_norm"},
    {"input_layernorm", "attn_norm"},
    {"self_attention.query_key_value", "attn_qkv"},
    {"self_attention.dense", "attn_output"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.dense_4h_to_h", "ffn_down"},
};

Expected<void> configure_falcon(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_bias = true;
  take_usual_width(config);
  config.parallel_halves = true;
  config.parallel_norms = checkpoint.has("blk.0.attn_norm_2.weight");
  return {};
}

}  // namespace

extern const ModelSpec kFalconSpec;
const ModelSpec kFalconSpec = {.files = {.gguf = "falcon",
                                         .model_type = "falcon",
                                         .class_name = "FalconForCausalLM",
                                         .defaults = kFalconDefaults,
                                         .required = kFalconRequired,
                                         .layer_types = LayerTypes::kFull,
                                         .ties_embedding = true,
                                         .names = kFalconNames,
                                         .layers_place = "transformer.h.",
                                         .subtracts_mean = true,
                                         .is_gated = false,
                                         .function = "gelu",
                                         .groups_qkv = true,
                                         .joins_qkv = true},
                               .configure = configure_falcon,
                               .build = build_decoder};

}  // namespace sluice
