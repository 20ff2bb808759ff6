// SPDX-License-Identifier: Apache-2.0
// BERT and its relatives with the same layers: RoBERTa, XLM-R and CamemBERT, whose positions begin
// behind that of padding, and Jina's BERT, which has none. All are encoders (encoder.h).
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
    {"model.linear.weight", "cls.tokens.weight"},  // ColBERT's
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
    {"mlp.gated_layers", "ffn_up"},
    {"mlp.wo", "ffn_down"},
    {"mlp.layernorm", "layer_output_norm"},
    // Jina's spelling of XLM-R (jina-reranker-v2).
    {"model.emb_ln.weight", "token_embd_norm.weight"},
    {"model.emb_ln.bias", "token_embd_norm.bias"},
    {"mixer.Wqkv", "attn_qkv"},
    {"mixer.out_proj", "attn_output"},
    {"norm1", "attn_output_norm"},
    {"mlp.fc1", "ffn_up"},
    {"mlp.fc2", "ffn_down"},
    {"norm2", "layer_output_norm"},
};

// Jina's BERT (v2): no positions but scores that fall with distance, and a gated feed-forward half
// whose last matrix alone has a bias.
Expected<void> configure_jina(const Checkpoint& checkpoint, ModelConfig& config) {
  config.num_positions = 0;
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  config.ropes.clear();
  config.max_alibi_bias = 8;
  config.gate_function = kernels::GateFunction::kGeluErf;
  config.fused_gate_up = !checkpoint.has("blk.0.ffn_gate.weight");  // older GGUF files have one
  config.only_down_bias = true;
  const Metadata& metadata = checkpoint.metadata();
  if (metadata.has("feed_forward_type")) {
    SLUICE_TRY(const std::string kind, metadata.get_string("feed_forward_type"));
    if (kind != "geglu") {
      return metadata.wrong("feed_forward_type", "\"" + kind + "\"", "geglu");
    }
  }
  return configure_post_norm_encoder(checkpoint, true, config);
}

Expected<void> configure_bert(const Checkpoint& checkpoint, ModelConfig& config) {
  config.num_positions = config.context_len;
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  config.ropes.clear();
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const bool is_decoder, metadata.get_bool_or("is_decoder", false));
  if (is_decoder) {
    return metadata.wrong("is_decoder", "true", "false: tokens of an encoder see those behind them");
  }
  if (metadata.has("position_embedding_type")) {
    SLUICE_TRY(const std::string kind, metadata.get_string("position_embedding_type"));
    if (kind == "alibi") return configure_jina(checkpoint, config);
    if (kind != "absolute") {
      return metadata.wrong("position_embedding_type",
                            "\"" + kind + "\"",
                            "absolute or alibi; rotary ones, and adapters for tasks, which "
                            "jina-embeddings-v3 has, are not supported");
    }
  }
  return configure_post_norm_encoder(checkpoint, true, config);
}

Expected<void> configure_roberta(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(configure_bert(checkpoint, config));
  return begin_behind_padding(checkpoint, config);
}

constexpr FileSpec encoder_files(std::string_view model_type,
                                 std::string_view class_name,
                                 std::span<const KeyDefault> defaults,
                                 std::string_view gguf = "bert") {
  return {.gguf = gguf,
          .reads_gguf = model_type == "bert" || gguf != "bert",
          .model_type = model_type,
          .class_name = class_name,
          .defaults = defaults,
          .names = kNames,
          .subtracts_mean = true,
          .is_gated = false,
          .function = "gelu",
          .is_encoder = true,
          .before_scores = "cls.weight"};
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

// GGUF files of Jina's BERT; its directories are BERT's.
extern const ModelSpec kJinaBertSpec;
const ModelSpec kJinaBertSpec = {.files = encoder_files("", "", kBertDefaults, "jina-bert-v2"),
                                 .configure = configure_jina,
                                 .build = build_encoder};

}  // namespace sluice
