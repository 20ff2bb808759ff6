// SPDX-License-Identifier: Apache-2.0
// Families whose feed-forward halves are two matrices around a function, and whose norms subtract
// the mean and have biases: StarCoder2; Phi-1, 1.5 and 2 and GPT-J, both halves of whose layers
// read one norm's output; GPT-NeoX (Pythia), whose halves side by side have a norm each; Falcon,
// which has either; GPT-2, StarCoder and OPT, which add a learned row for each position in the
// place of rotations; Bloom, whose scores fall with distance and whose embedding has a norm.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kStarCoder2Defaults[] = {
    {"num_attention_heads", 24U},
    {"num_key_value_heads", 2U},
    {"max_position_embeddings", 4096U},
    {"norm_epsilon", 1e-5},
    {"use_bias", true},
    {"hidden_act", "gelu_pytorch_tanh"},
};

constexpr KeyDefault kPhiDefaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_eps", 1e-5},
    {"partial_rotary_factor", 0.5},
};

constexpr KeyDefault kNeoxDefaults[] = {
    {"num_attention_heads", 64U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_eps", 1e-5},
    {"partial_rotary_factor", 0.25},
    {"use_parallel_residual", true},
    {"attention_bias", true},
};

constexpr KeyDefault kFalconDefaults[] = {
    {"num_hidden_layers", 32U},
    {"hidden_size", 4544U},
    {"num_attention_heads", 71U},
    {"num_key_value_heads", 1U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_epsilon", 1e-5},
};

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

constexpr KeyDefault kGptJDefaults[] = {
    {"num_hidden_layers", 28U},
    {"hidden_size", 4096U},
    {"num_attention_heads", 16U},
    {"n_positions", 2048U},
    {"rotary_dim", 64U},
    {"layer_norm_epsilon", 1e-5},
};

constexpr KeyDefault kOptDefaults[] = {
    {"num_attention_heads", 12U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_eps", 1e-5},
    {"attention_bias", true},
};

constexpr KeyDefault kBloomDefaults[] = {
    {"num_hidden_layers", 2U},
    {"num_attention_heads", 8U},
    {"n_embed", 64U},
    {"seq_length", 2048U},
    {"layer_norm_epsilon", 1e-5},
    {"attention_bias", true},
};

// Values that change a result and that no widely used file has.
constexpr RequiredNumber kPhiRequired[] = {{"qk_layernorm", 0}};

constexpr RequiredNumber kFalconRequired[] = {
    {"alibi", 0}, {"multi_query", 1}, {"parallel_attn", 1}};

constexpr RequiredNumber kGpt2Required[] = {
    {"scale_attn_weights", 1}, {"scale_attn_by_inverse_layer_idx", 0}, {"add_cross_attention", 0}};

constexpr RequiredNumber kBigCodeRequired[] = {
    {"multi_query", 1}, {"scale_attn_weights", 1}, {"add_cross_attention", 0}};

constexpr RequiredNumber kGptJRequired[] = {{"rotary", 1}, {"scale_attn_weights", 1}};

constexpr RequiredNumber kBloomRequired[] = {{"apply_residual_connection_post_layernorm", 0},
                                             {"slow_but_exact", 0}};

constexpr RequiredNumber kOptRequired[] = {{"do_layer_norm_before", 1},
                                           {"_remove_final_layer_norm", 0},
                                           {"layer_norm_elementwise_affine", 1},
                                           {"enable_bias", 1}};

constexpr TensorName kStarCoder2Names[] = {
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};

constexpr TensorName kPhiNames[] = {
    {"model.final_layernorm.weight", "output_norm.weight"},
    {"model.final_layernorm.bias", "output_norm.bias"},
    {"self_attn.dense", "attn_output"},
    {"mlp.fc1", "ffn_up"},
    {"mlp.fc2", "ffn_down"},
};

constexpr TensorName kNeoxNames[] = {
    {"gpt_neox.embed_in.weight", "token_embd.weight"},
    {"gpt_neox.final_layer_norm.weight", "output_norm.weight"},
    {"gpt_neox.final_layer_norm.bias", "output_norm.bias"},
    {"embed_out.weight", "output.weight"},
    {"attention.query_key_value", "attn_qkv"},
    {"attention.dense", "attn_output"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.dense_4h_to_h", "ffn_down"},
};

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

constexpr TensorName kGptJNames[] = {
    {"transformer.wte.weight", "token_embd.weight"},
    {"transformer.ln_f.weight", "output_norm.weight"},
    {"transformer.ln_f.bias", "output_norm.bias"},
    {"ln_1", "attn_norm"},
    {"attn.q_proj", "attn_q"},
    {"attn.k_proj", "attn_k"},
    {"attn.v_proj", "attn_v"},
    {"attn.out_proj", "attn_output"},
    {"mlp.fc_in", "ffn_up"},
    {"mlp.fc_out", "ffn_down"},
};

constexpr TensorName kOptNames[] = {
    {"model.decoder.embed_tokens.weight", "token_embd.weight"},
    {"decoder.embed_tokens.weight", "token_embd.weight"},
    {"model.decoder.embed_positions.weight", "position_embd.weight"},
    {"decoder.embed_positions.weight", "position_embd.weight"},
    {"model.decoder.final_layer_norm.weight", "output_norm.weight"},
    {"decoder.final_layer_norm.weight", "output_norm.weight"},
    {"model.decoder.final_layer_norm.bias", "output_norm.bias"},
    {"decoder.final_layer_norm.bias", "output_norm.bias"},
    {"self_attn_layer_norm", "attn_norm"},
    {"self_attn.out_proj", "attn_output"},
    {"final_layer_norm", "ffn_norm"},
    {"fc1", "ffn_up"},
    {"fc2", "ffn_down"},
};

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

constexpr std::string_view kStarCoder2HfKeys[] = {"norm_epsilon", "use_bias"};

constexpr std::string_view kPhiHfKeys[] = {"layer_norm_eps"};

constexpr std::string_view kBigCodeHfKeys[] = {
    "layer_norm_epsilon", "n_inner", "activation_function", "multi_query"};

constexpr std::string_view kNeoxGgufKeys[] = {"use_parallel_residual"};

// All matrices have biases, unless tensors say otherwise of attention's.
void take_biases(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_bias = true;
  config.mlp_bias = config.mlp_bias || checkpoint.is_dummy();
}

// Where files leave the width out, it is four times the stream's.
void take_usual_width(ModelConfig& config) {
  if (config.ffn_hidden == 0) config.ffn_hidden = 4 * config.hidden;
}

// Gives each position a learned row; that of a text's first token is `first`.
void take_positions(int32_t first, ModelConfig& config) {
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  config.first_position = first;
  config.num_positions = config.context_len + first;
}

Expected<void> configure_starcoder2(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_bias = true;
  if (checkpoint.is_dummy()) config.mlp_bias = config.qkv_bias;
  SLUICE_TRY(const int32_t window, read_window(checkpoint.metadata()));
  for (LayerConfig& layer : config.layers) layer.window = window;
  return {};
}

Expected<void> configure_phi(const Checkpoint& checkpoint, ModelConfig& config) {
  take_biases(checkpoint, config);
  config.qkv_bias = true;
  config.attention_out_bias = true;
  config.parallel_halves = true;
  config.output_bias = !config.tied_embeddings;
  return {};
}

Expected<void> configure_neox(const Checkpoint& checkpoint, ModelConfig& config) {
  take_biases(checkpoint, config);
  take_usual_width(config);
  SLUICE_TRY(config.parallel_halves,
             checkpoint.metadata().get_bool_or("use_parallel_residual", true));
  config.parallel_norms = config.parallel_halves;
  return {};
}

Expected<void> configure_falcon(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_bias = true;
  take_usual_width(config);
  config.parallel_halves = true;
  config.parallel_norms = checkpoint.has("blk.0.attn_norm_2.weight");
  return {};
}

Expected<void> configure_gpt2(const Checkpoint& checkpoint, ModelConfig& config) {
  take_biases(checkpoint, config);
  take_usual_width(config);
  take_positions(0, config);
  return {};
}

// The 350M model, alone of its family, embeds in another width and norms what halves have added.
Expected<void> configure_opt(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr const char* kWidth = "embedding_width";
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const int32_t width, metadata.get_count_or(kWidth, 1 << 20, config.hidden));
  if (width != config.hidden) {
    return metadata.wrong(kWidth, std::to_string(width), std::to_string(config.hidden));
  }
  take_biases(checkpoint, config);
  constexpr int32_t kFirst = 2;
  take_positions(kFirst, config);
  return {};
}

Expected<void> configure_gptj(const Checkpoint& checkpoint, ModelConfig& config) {
  take_biases(checkpoint, config);
  take_usual_width(config);
  config.parallel_halves = true;
  config.output_bias = !config.tied_embeddings;
  return {};
}

Expected<void> configure_bloom(const Checkpoint& checkpoint, ModelConfig& config) {
  take_biases(checkpoint, config);
  take_usual_width(config);
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  config.max_alibi_bias = 8;
  config.embedding_norm = true;
  return {};
}

}  // namespace

extern const ModelSpec kStarCoder2Spec;
const ModelSpec kStarCoder2Spec = {.files = {.gguf = "starcoder2",
                                             .model_type = "starcoder2",
                                             .class_name = "Starcoder2ForCausalLM",
                                             .defaults = kStarCoder2Defaults,
                                             .layer_types = LayerTypes::kAsTheWindow,
                                             .ties_embedding = true,
                                             .names = kStarCoder2Names,
                                             .subtracts_mean = true,
                                             .is_gated = false,
                                             .function = "gelu_new"},
                                   .configure = configure_starcoder2,
                                   .build = build_decoder,
                                   .hf_keys = kStarCoder2HfKeys};

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

extern const ModelSpec kNeoxSpec;
const ModelSpec kNeoxSpec = {.files = {.gguf = "gptneox",
                                       .model_type = "gpt_neox",
                                       .class_name = "GPTNeoXForCausalLM",
                                       .defaults = kNeoxDefaults,
                                       .layer_types = LayerTypes::kFull,
                                       .is_partly_rotated = true,
                                       .names = kNeoxNames,
                                       .layers_place = "gpt_neox.layers.",
                                       .subtracts_mean = true,
                                       .is_gated = false,
                                       .function = "gelu",
                                       .groups_qkv = true,
                                       .joins_qkv = true,
                                       .may_be_parallel = true},
                             .configure = configure_neox,
                             .build = build_decoder,
                             .gguf_keys = kNeoxGgufKeys};

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

extern const ModelSpec kGptJSpec;
const ModelSpec kGptJSpec = {.files = {.model_type = "gptj",
                                       .class_name = "GPTJForCausalLM",
                                       .defaults = kGptJDefaults,
                                       .required = kGptJRequired,
                                       .layer_types = LayerTypes::kFull,
                                       .names = kGptJNames,
                                       .layers_place = "transformer.h.",
                                       .pairs_rows = true,
                                       .subtracts_mean = true,
                                       .is_gated = false,
                                       .function = "gelu_new"},
                             .configure = configure_gptj,
                             .build = build_decoder};

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

extern const ModelSpec kOptSpec;
const ModelSpec kOptSpec = {.files = {.model_type = "opt",
                                      .class_name = "OPTForCausalLM",
                                      .defaults = kOptDefaults,
                                      .required = kOptRequired,
                                      .layer_types = LayerTypes::kFull,
                                      .ties_embedding = true,
                                      .names = kOptNames,
                                      .layers_place = "model.decoder.layers.",
                                      .subtracts_mean = true,
                                      .is_gated = false,
                                      .function = "relu"},
                            .configure = configure_opt,
                            .build = build_decoder};

}  // namespace sluice
