// SPDX-License-Identifier: Apache-2.0
// DistilBERT: BERT's layers under other names, without segments (encoder.h). A classifier has a
// layer with ReLU between the first token's state and the labels.
#include "engine/models/config_reader.h"
#include "engine/models/encoder.h"

namespace sluice {
namespace {

// Defaults of transformers' class, whose norms have this epsilon in all models.
constexpr KeyDefault kDistilBertDefaults[] = {
    {"n_layers", 6U},
    {"n_heads", 12U},
    {"dim", 768U},
    {"hidden_dim", 3072U},
    {"max_position_embeddings", 512U},
    {"layer_norm_eps", 1e-12},
    {"activation", std::string_view("gelu")},
};

constexpr TensorName kDistilBertNames[] = {
    {"model.embeddings.word_embeddings.weight", "token_embd.weight"},
    {"model.embeddings.position_embeddings.weight", "position_embd.weight"},
    {"model.embeddings.LayerNorm.weight", "token_embd_norm.weight"},
    {"model.embeddings.LayerNorm.bias", "token_embd_norm.bias"},
    {"model.pre_classifier.weight", "cls.relu.weight"},
    {"model.pre_classifier.bias", "cls.relu.bias"},
    {"model.classifier.weight", "cls.output.weight"},
    {"model.classifier.bias", "cls.output.bias"},
    {"model.linear.weight", "cls.tokens.weight"},  // ColBERT's
    {"attention.q_lin", "attn_q"},
    {"attention.k_lin", "attn_k"},
    {"attention.v_lin", "attn_v"},
    {"attention.out_lin", "attn_output"},
    {"sa_layer_norm", "attn_output_norm"},
    {"ffn.lin1", "ffn_up"},
    {"ffn.lin2", "ffn_down"},
    {"output_layer_norm", "layer_output_norm"},
};

Expected<void> configure_distilbert(const Checkpoint& checkpoint, ModelConfig& config) {
  config.num_positions = config.context_len;
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  config.ropes.clear();
  return configure_post_norm_encoder(checkpoint, false, config);
}

}  // namespace

extern const ModelSpec kDistilBertSpec;
const ModelSpec kDistilBertSpec = {.files = {.model_type = "distilbert",
                                             .class_name = "DistilBertModel",
                                             .defaults = kDistilBertDefaults,
                                             .names = kDistilBertNames,
                                             .subtracts_mean = true,
                                             .is_gated = false,
                                             .function = "gelu",
                                             .is_encoder = true,
                                             .before_scores = "cls.relu.weight"},
                                   .configure = configure_distilbert,
                                   .build = build_encoder};

}  // namespace sluice
