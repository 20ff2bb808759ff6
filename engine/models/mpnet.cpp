// SPDX-License-Identifier: Apache-2.0
// MPNet: BERT's layers (encoder.h) without segments, positions that begin after that of padding,
// and scores that gain by their keys' places what one table of all layers has.
#include "engine/models/config_reader.h"
#include "engine/models/encoder.h"

namespace sluice {
namespace {

// Defaults of transformers' class.
constexpr KeyDefault kMpnetDefaults[] = {
    {"num_attention_heads", 12U},
    {"max_position_embeddings", 512U},
    {"layer_norm_eps", 1e-12},
    {"hidden_act", std::string_view("gelu")},
};

constexpr int32_t kBuckets = 32;

constexpr RequiredNumber kMpnetRequired[] = {{"relative_attention_num_buckets", kBuckets}};

constexpr TensorName kMpnetNames[] = {
    {"model.embeddings.word_embeddings.weight", "token_embd.weight"},
    {"model.embeddings.position_embeddings.weight", "position_embd.weight"},
    {"model.embeddings.LayerNorm.weight", "token_embd_norm.weight"},
    {"model.embeddings.LayerNorm.bias", "token_embd_norm.bias"},
    {"model.encoder.relative_attention_bias.weight", "attn_rel_b.weight"},
    {"model.pooler.dense.weight", "cls.weight"},
    {"model.pooler.dense.bias", "cls.bias"},
    {"model.classifier.dense.weight", "cls.weight"},
    {"model.classifier.dense.bias", "cls.bias"},
    {"model.classifier.out_proj.weight", "cls.output.weight"},
    {"model.classifier.out_proj.bias", "cls.output.bias"},
    {"attention.attn.q", "attn_q"},
    {"attention.attn.k", "attn_k"},
    {"attention.attn.v", "attn_v"},
    {"attention.attn.o", "attn_output"},
    {"attention.LayerNorm", "attn_output_norm"},
    {"intermediate.dense", "ffn_up"},
    {"output.dense", "ffn_down"},
    {"output.LayerNorm", "layer_output_norm"},
};

Expected<void> configure_mpnet(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr int32_t kMostPositions = 1 << 14;  // each layer has a bias for each place
  if (config.context_len > kMostPositions) {
    return checkpoint.metadata().wrong(
        "context_length", std::to_string(config.context_len), "at most 16384");
  }
  config.num_positions = config.context_len;
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  config.ropes.clear();
  config.place_buckets = kBuckets;
  SLUICE_TRY_VOID(configure_post_norm_encoder(checkpoint, false, config));
  return begin_behind_padding(checkpoint, config);
}

}  // namespace

extern const ModelSpec kMpnetSpec;
const ModelSpec kMpnetSpec = {.files = {.model_type = "mpnet",
                                        .class_name = "MPNetModel",
                                        .defaults = kMpnetDefaults,
                                        .required = kMpnetRequired,
                                        .names = kMpnetNames,
                                        .subtracts_mean = true,
                                        .is_gated = false,
                                        .function = "gelu",
                                        .is_encoder = true,
                                        .before_scores = "cls.weight"},
                              .configure = configure_mpnet,
                              .build = build_encoder};

}  // namespace sluice
