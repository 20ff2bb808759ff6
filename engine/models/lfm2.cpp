// SPDX-License-Identifier: Apache-2.0
// LFM2 and LFM2-MoE: short convolutions between gates, and attention with norms of each head of q
// and k in some layers; experts, after leading dense layers, are chosen by sigmoids with a bias.
#include <algorithm>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/recurrent_layers.h"

namespace sluice {
namespace {

constexpr KeyDefault kDefaults[] = {
    {"intermediate_size", 12288U},
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 128000U},
    {"rope_theta", 1000000.0},
    {"conv_L_cache", 3U},
};

constexpr KeyDefault kMoeDefaults[] = {
    {"intermediate_size", 7168U},
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 128000U},
    {"rope_theta", 1000000.0},
    {"conv_L_cache", 3U},
    {"moe_intermediate_size", 1792U},
    {"num_dense_layers", 2U},
    {"num_experts", 32U},
    {"num_experts_per_tok", 4U},
};

constexpr TensorName kNames[] = {
    {"model.embedding_norm.weight", "output_norm.weight"},
    {"operator_norm", "attn_norm"},
    {"ffn_norm", "ffn_norm"},
    {"conv.in_proj", "conv_in"},
    {"conv.conv", "conv_kernel"},
    {"conv.out_proj", "conv_out"},
    {"self_attn.out_proj", "attn_output"},
    {"self_attn.q_layernorm", "attn_q_norm"},
    {"self_attn.k_layernorm", "attn_k_norm"},
    {"feed_forward.w1", "ffn_gate"},
    {"feed_forward.w2", "ffn_down"},
    {"feed_forward.w3", "ffn_up"},
    {"feed_forward.gate", "ffn_gate_inp"},
    {"feed_forward.expert_bias", "exp_probs_b.bias"},
    {"feed_forward.experts.#.w1", "ffn_gate_exps"},
    {"feed_forward.experts.#.w2", "ffn_down_exps"},
    {"feed_forward.experts.#.w3", "ffn_up_exps"},
};

constexpr TensorName kGgufNames[] = {
    {"token_embd_norm.weight", "output_norm.weight"},
    {"shortconv.in_proj", "conv_in"},
    {"shortconv.conv", "conv_kernel"},
    {"shortconv.out_proj", "conv_out"},
};

// The class of a directory's model makes halves narrower than intermediate_size says.
Expected<void> adjust_width(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const bool adjusts, metadata.get_bool_or("ffn_adjusts_width", true));
  if (checkpoint.kind() == CheckpointKind::kGguf || !adjusts) return {};
  SLUICE_TRY(const double factor, metadata.get_positive_or("ffn_width_factor", 1));
  SLUICE_TRY(const int32_t unit, metadata.get_count_or("ffn_width_unit", 1 << 20, 256));
  if (!(factor < 1000)) {
    return metadata.wrong("ffn_width_factor", std::to_string(factor), "less than 1000");
  }
  const int64_t width = 2 * int64_t{config.ffn_hidden} / 3;
  const auto scaled = static_cast<int64_t>(factor * static_cast<double>(width));
  config.ffn_hidden = static_cast<int32_t>(align_up(std::min<int64_t>(scaled, 1 << 20), unit));
  return {};
}

Expected<void> configure_conv(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qk_norm = QkNorm::kHead;
  return read_recurrent_layers(checkpoint, MixerKind::kShortConv, 1, config);
}

Expected<void> configure_lfm2(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(adjust_width(checkpoint, config));
  return configure_conv(checkpoint, config);
}

Expected<void> configure_lfm2_moe(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(config.moe.choice_bias, metadata.get_bool_or("expert_choice_bias", true));
  SLUICE_TRY(config.moe.router.normalize, metadata.get_bool_or("expert_weights_norm", true));
  config.moe.router.score = kernels::RouterScore::kSigmoid;
  config.moe.router.epsilon = 1e-6F;
  SLUICE_TRY_VOID(check_experts(checkpoint, config));
  return configure_conv(checkpoint, config);
}

}  // namespace

extern const ModelSpec kLfm2Spec;
const ModelSpec kLfm2Spec = {.files = {.gguf = "lfm2",
                                       .model_type = "lfm2",
                                       .class_name = "Lfm2ForCausalLM",
                                       .defaults = kDefaults,
                                       .layer_types = LayerTypes::kRecurrent,
                                       .ties_embedding = true,
                                       .names = kNames,
                                       .gguf_names = kGgufNames},
                             .configure = configure_lfm2,
                             .build = build_decoder};

extern const ModelSpec kLfm2MoeSpec;
const ModelSpec kLfm2MoeSpec = {.files = {.gguf = "lfm2moe",
                                          .model_type = "lfm2_moe",
                                          .class_name = "Lfm2MoeForCausalLM",
                                          .defaults = kMoeDefaults,
                                          .layer_types = LayerTypes::kRecurrent,
                                          .ties_embedding = true,
                                          .names = kNames,
                                          .gguf_names = kGgufNames},
                                .configure = configure_lfm2_moe,
                                .build = build_decoder};

}  // namespace sluice
