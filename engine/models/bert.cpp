// SPDX-License-Identifier: Apache-2.0
// BERT and its relatives with the same layers: RoBERTa, XLM-R and CamemBERT, whose positions begin
// behind that of padding. All are encoders (encoder.h).
#include "engine/models/config_reader.h"
#include "engine/models/encoder.h"
#include "engine/weights/checkpoint.h"

namespace sluice {
namespace {

// Defaults of transformers' classes.
constexpr KeyDefault kBertDefaults[] = {
    {"num_attention_heads", 12U},
    {"max_position_embeddings", 512U},
    {"layer_norm_eps", 1e-12},
    {"hidden_act", std::string_view("gelu")},
};

constexpr KeyDefault kRobertaDefaults[] = {
    {"num_attention_heads", 12U},
    {"max_position_embeddings", 514U},
    {"layer_norm_eps", 1e-5},
    {"hidden_act", std::string_view("gelu")},
};

constexpr TensorName kNames[] = {
    {"model.embeddings.word_embeddings.weight", "token_embd.weight"},
    {"model.embeddings.position_embeddings.weight", "position_embd.weight"},
    {"model.embeddings.token_type_embeddings.weight", "token_types.weight"},
    {"model.embeddings.LayerNorm.weight", "token_embd_norm.weight"},
    {"model.embeddings.LayerNorm.bias", "token_embd_norm.bias"},
    {"model.pooler.dense.weight", "cls.weight"},
    {"model.pooler.dense.bias", "cls.bias"},
    {"model.classifier.weight", "cls.output.weight"},
    {"model.classifier.bias", "cls.output.bias"},
    {"model.classifier.dense.weight", "cls.weight"},
    {"model.classifier.dense.bias", "cls.bias"},
    {"model.classifier.out_proj.weight", "cls.output.weight"},
    {"model.classifier.out_proj.bias", "cls.output.bias"},
    {"attention.self.query", "attn_q"},
    {"attention.self.key", "attn_k"},
    {"attention.self.value", "attn_v"},
    {"attention.output.dense", "attn_output"},
    {"attention.output.LayerNorm", "attn_output_norm"},
    {"intermediate.dense", "ffn_up"},
    {"output.dense", "ffn_down"},
    {"output.LayerNorm", "layer_output_norm"},
};

Expected<void> configure_bert(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_bias = true;
  config.num_positions = config.context_len;
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  config.ropes.clear();
  const Metadata& metadata = checkpoint.metadata();
  if (metadata.has("position_embedding_type")) {
    SLUICE_TRY(const std::string kind, metadata.get_string("position_embedding_type"));
    if (kind != "absolute") {
      return metadata.wrong("position_embedding_type", "\"" + kind + "\"", "absolute");
    }
  }
  return read_encoder_tables(checkpoint, config);
}

// Positions begin behind the padding's, which is 1 in all published models; a GGUF file's table
// lacks the rows before.
Expected<void> configure_roberta(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr int32_t kFirst = 2;
  SLUICE_TRY_VOID(configure_bert(checkpoint, config));
  if (config.context_len <= kFirst) {
    return checkpoint.metadata().wrong(
        "context_length", std::to_string(config.context_len), "more than 2");
  }
  config.first_position = kFirst;
  config.context_len -= kFirst;
  return {};
}

constexpr FileSpec encoder_files(std::string_view model_type,
                                 std::string_view class_name,
                                 std::span<const KeyDefault> defaults) {
  return {.gguf = "bert",
          .reads_gguf = model_type == "bert",
          .model_type = model_type,
          .class_name = class_name,
          .defaults = defaults,
          .names = kNames,
          .subtracts_mean = true,
          .is_gated = false,
          .is_encoder = true};
}

}  // namespace

extern const ModelSpec kBertSpec;
const ModelSpec kBertSpec = {.files = encoder_files("bert", "BertModel", kBertDefaults),
                             .configure = configure_bert,
                             .build = build_encoder};

extern const ModelSpec kRobertaSpec;
const ModelSpec kRobertaSpec = {.files = encoder_files("roberta", "RobertaModel", kRobertaDefaults),
                                .configure = configure_roberta,
                                .build = build_encoder};

extern const ModelSpec kXlmRobertaSpec;
const ModelSpec kXlmRobertaSpec = {
    .files = encoder_files("xlm-roberta", "XLMRobertaModel", kRobertaDefaults),
    .configure = configure_roberta,
    .build = build_encoder};

extern const ModelSpec kCamembertSpec;
const ModelSpec kCamembertSpec = {
    .files = encoder_files("camembert", "CamembertModel", kRobertaDefaults),
    .configure = configure_roberta,
    .build = build_encoder};

}  // namespace sluice
