// SPDX-License-Identifier: Apache-2.0
// Bloom: scores fall with distance (ALiBi), and the embedding has a norm.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kBloomDefaults[] = {
    {"num_hidden_layers", 2U},
    {"num_attention_heads", 8U},
    {"n_embed", 64U},
    {"seq_length", 2048U},
    {"layer_norm_epsilon", 1e-5},
    {"attention_bias", true},
};

constexpr RequiredNumber kBloomRequired[] = {{"apply_residual_connection_post_layernorm", 0},
                                             {"slow_but_exact", 0}};

constexpr TensorName kBloomNames[] = {
    {"transformer.word_embeddings.weight", "token_embd.weight"},
    {"word_embeddings.weight", "token_embd.weight"},
    {"transformer.word_embeddings_layernorm.weight", "token_embd_norm.weight"},
    {"word_embeddings_layernorm.weight", "token_embd_norm.weight"},
    {"transformer.word_embeddings_layernorm.bias", "token_embd_norm.bias"},
    {"word_embeddings_layernorm.bias", "token_embd_norm.bias"},
    {"transformer.ln_f.weight", "output_norm.weight"},
    {"ln_f.weight", "output_norm.weight"},
    {"transformer.ln_f.bias", "output_norm.bias"},
    {"ln_f.bias", "output_norm.bias"},
    {"self_attention.query_key_value", "attn_qkv"},
    {"self_attention.dense", "attn_output"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.dense_4h_to_h", "ffn_down"},
};

Expected<void> configure_bloom(const Checkpoint& checkpoint, ModelConfig& config) {
  take_biases(checkpoint, config);
  take_usual_width(config);
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  config.max_alibi_bias = 8;
  config.embedding_norm = true;
  return {};
}

}  // namespace

extern const ModelSpec kBloomSpec;
const ModelSpec kBloomSpec = {.files = {.gguf = "bloom",
                                        .model_type = "bloom",
                                        .class_name = "BloomForCausalLM",
                                        .defaults = kBloomDefaults,
                                        .required = kBloomRequired,
                                        .layer_types = LayerTypes::kFull,
                                        .ties_embedding = true,
                                        .names = kBloomNames,
                                        .layers_place = "transformer.h.",
                                        .subtracts_mean = true,
                                        .is_gated = false,
                                        .function = "gelu_new",
                                        .groups_qkv = true,
                                        .joins_qkv = true},
                              .configure = configure_bloom,
                              .build = build_decoder};

}  // namespace sluice
