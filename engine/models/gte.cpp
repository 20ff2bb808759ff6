// SPDX-License-Identifier: Apache-2.0
// GTE v1.5 and mGTE: an encoder (encoder.h) with BERT's norms and biases, rotations, and a gated
// feed-forward half whose last matrix alone has a bias.
#include "engine/models/encoder.h"
#include "engine/weights/checkpoint.h"

namespace sluice {
namespace {

// Defaults of transformers' class and of the authors' code.
constexpr KeyDefault kGteDefaults[] = {
    {"num_attention_heads", 12U},
    {"max_position_embeddings", 8192U},
    {"layer_norm_eps", 1e-12},
    {"hidden_act", std::string_view("gelu")},
    {"rope_theta", 160000.0},
};

constexpr KeyDefault kNewDefaults[] = {
    {"num_attention_heads", 12U},
    {"max_position_embeddings", 8192U},
    {"layer_norm_eps", 1e-12},
    {"hidden_act", std::string_view("gelu")},
    {"rope_theta", 10000.0},
};

constexpr TensorName kGteNames[] = {
    {"model.embeddings.word_embeddings.weight", "token_embd.weight"},
    {"model.embeddings.token_type_embeddings.weight", "token_types.weight"},
    {"model.embeddings.LayerNorm.weight", "token_embd_norm.weight"},
    {"model.embeddings.LayerNorm.bias", "token_embd_norm.bias"},
    {"model.pooler.dense.weight", "cls.weight"},
    {"model.pooler.dense.bias", "cls.bias"},
    {"model.classifier.weight", "cls.output.weight"},
    {"model.classifier.bias", "cls.output.bias"},
    {"attention.qkv_proj", "attn_qkv"},
    {"attention.o_proj", "attn_output"},
    {"attn_ln", "attn_output_norm"},
    {"mlp.up_gate_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp_ln", "layer_output_norm"},
};

Expected<void> configure(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.only_down_bias = true;
  config.has_up_first = true;
  if (metadata.has("position_embedding_type")) {
    SLUICE_TRY(const std::string kind, metadata.get_string("position_embedding_type"));
    if (kind != "rope") {
      return metadata.wrong("position_embedding_type", "\"" + kind + "\"", "rope");
    }
  }
  return configure_post_norm_encoder(checkpoint, false, config);
}

constexpr FileSpec gte_files(std::string_view model_type,
                             std::string_view class_name,
                             std::span<const KeyDefault> defaults) {
  return {.model_type = model_type,
          .class_name = class_name,
          .defaults = defaults,
          .names = kGteNames,
          .subtracts_mean = true,
          .is_encoder = true,
          .before_scores = "cls.weight"};
}

}  // namespace

// These are transformers' spelling and the authors'.
extern const ModelSpec kGteSpec;
const ModelSpec kGteSpec = {.files = gte_files("gte", "GteModel", kGteDefaults),
                            .configure = configure,
                            .build = build_encoder};

extern const ModelSpec kNewSpec;
const ModelSpec kNewSpec = {.files = gte_files("new", "NewModel", kNewDefaults),
                            .configure = configure,
                            .build = build_encoder};

}  // namespace sluice
