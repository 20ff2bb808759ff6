// SPDX-License-Identifier: Apache-2.0
// Nomic's BERT: an encoder (encoder.h) whose positions are rotations and whose feed-forward half is
// gated, without biases but in its norms.
#include "engine/models/encoder.h"

namespace sluice {
namespace {

// Defaults of transformers' class. Texts longer than those that it was trained on need other
// rotations, which its authors' code computes anew for each length.
constexpr KeyDefault kNomicDefaults[] = {
    {"num_attention_heads", 12U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_eps", 1e-12},
    {"hidden_act", std::string_view("silu")},
    {"rope_theta", 1000.0},
};

// transformers' names, and those of the authors' code.
constexpr TensorName kNomicNames[] = {
    {"model.embeddings.word_embeddings.weight", "token_embd.weight"},
    {"model.embeddings.token_type_embeddings.weight", "token_types.weight"},
    {"model.embeddings.LayerNorm.weight", "token_embd_norm.weight"},
    {"model.embeddings.LayerNorm.bias", "token_embd_norm.bias"},
    {"model.emb_ln.weight", "token_embd_norm.weight"},
    {"model.emb_ln.bias", "token_embd_norm.bias"},
    {"post_attention_layernorm", "attn_output_norm"},
    {"post_mlp_layernorm", "layer_output_norm"},
    {"attn.Wqkv", "attn_qkv"},
    {"attn.out_proj", "attn_output"},
    {"mlp.fc11", "ffn_up"},
    {"mlp.fc12", "ffn_gate"},
    {"mlp.fc2", "ffn_down"},
    {"norm1", "attn_output_norm"},
    {"norm2", "layer_output_norm"},
};

Expected<void> configure(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_bias = true;
  return read_encoder_tables(checkpoint, config);
}

}  // namespace

extern const ModelSpec kNomicBertSpec;
const ModelSpec kNomicBertSpec = {.files = {.gguf = "nomic-bert",
                                            .model_type = "nomic_bert",
                                            .class_name = "NomicBertModel",
                                            .defaults = kNomicDefaults,
                                            .names = kNomicNames,
                                            .subtracts_mean = true,
                                            .is_encoder = true},
                                  .configure = configure,
                                  .build = build_encoder};

}  // namespace sluice
