// SPDX-License-Identifier: Apache-2.0
// Qwen3-Next and Qwen3.5 (3.6, 3.8), dense and with experts: three layers of the gated delta rule,
// then one of attention, whose output has a gate and of whose heads a quarter rotates.
#include <span>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/derived_defaults.h"
#include "engine/models/recurrent_layers.h"

namespace sluice {
namespace {

constexpr KeyDefault kDenseDefaults[] = {
    {"num_attention_heads", 16U},
    {"num_key_value_heads", 4U},
    {"head_dim", 256U},
    {"max_position_embeddings", 32768U},
    {"rms_norm_eps", 1e-6},
    {"partial_rotary_factor", 0.25},
    {"linear_conv_kernel_dim", 4U},
    {"linear_key_head_dim", 128U},
    {"linear_value_head_dim", 128U},
    {"linear_num_key_heads", 16U},
    {"linear_num_value_heads", 32U},
};

constexpr auto kMoeDefaults = derived_from(std::span(kDenseDefaults),
                                           {{"num_key_value_heads", 2U}},
                                           {{"num_experts", 256U},
                                            {"num_experts_per_tok", 8U},
                                            {"moe_intermediate_size", 512U},
                                            {"shared_expert_intermediate_size", 512U}});

constexpr auto kNextDefaults = derived_from(
    std::span(kMoeDefaults), {{"num_experts", 512U}, {"num_experts_per_tok", 10U}});

constexpr TensorName kHfNames[] = {
    {"linear_attn.in_proj_qkv", "delta_qkv"},
    {"linear_attn.in_proj_z", "delta_gate"},
    {"linear_attn.in_proj_b", "delta_beta"},
    {"linear_attn.in_proj_a", "delta_alpha"},
    {"linear_attn.in_proj_qkvz", "delta_qkvz"},
    {"linear_attn.in_proj_ba", "delta_ba"},
    {"linear_attn.conv1d", "delta_conv"},
    {"linear_attn.A_log", "delta_log_rate.weight"},
    {"linear_attn.dt_bias", "delta_dt.bias"},
    {"linear_attn.norm", "delta_norm"},
    {"linear_attn.out_proj", "delta_out"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
};

constexpr TensorName kGgufNames[] = {
    {"post_attention_norm", "ffn_norm"},
    {"attn_qkv", "delta_qkv"},
    {"attn_gate", "delta_gate"},
    {"ssm_in", "delta_qkvz"},  // of Qwen3-Next's first files
    {"ssm_beta", "delta_beta"},
    {"ssm_alpha", "delta_alpha"},
    {"ssm_ba", "delta_ba"},
    {"ssm_conv1d", "delta_conv"},
    {"ssm_a", "delta_rate"},
    {"ssm_dt", "delta_dt"},
    {"ssm_norm", "delta_norm"},
    {"ssm_out", "delta_out"},
};

Expected<void> configure_next(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.qk_norm = QkNorm::kHead;
  config.attention_gate = true;
  config.gates_with_queries = true;
  config.fused_qkv = false;
  config.moe.gated_shared = true;
  config.head.hands_on_normed = true;  // of its module
  SLUICE_TRY(config.moe.router.normalize, metadata.get_bool_or("expert_weights_norm", true));
  SLUICE_TRY(const int32_t every, metadata.get_count_or("decoder_sparse_step", 1024, 1));
  if (every != 1) {
    return metadata.wrong(
        "decoder_sparse_step", std::to_string(every), "1: experts in every layer");
  }
  SLUICE_TRY_VOID(read_delta(checkpoint, config));
  return read_recurrent_layers(checkpoint, MixerKind::kDelta, 4, config);
}

// llama.cpp's converter reorders the value heads of these files, and not of Qwen3-Next's.
Expected<void> configure_qwen3_5(const Checkpoint& checkpoint, ModelConfig& config) {
  config.delta.has_tiled_heads = checkpoint.kind() == CheckpointKind::kGguf;
  return configure_next(checkpoint, config);
}

}  // namespace

extern const ModelSpec kQwen3NextSpec;
const ModelSpec kQwen3NextSpec = {.files = {.gguf = "qwen3next",
                                            .model_type = "qwen3_next",
                                            .class_name = "Qwen3NextForCausalLM",
                                            .defaults = kNextDefaults,
                                            .layer_types = LayerTypes::kRecurrent,
                                            .is_partly_rotated = true,
                                            .names = kHfNames,
                                            .gguf_names = kGgufNames,
                                            .experts = ExpertTensors::kStackedAlone,
                                            .norm_offset = 1,
                                            .may_be_qwen3_reranker = true},
                                  .configure = configure_next,
                                  .build = build_decoder};

extern const ModelSpec kQwen35Spec;
const ModelSpec kQwen35Spec = {.files = {.gguf = "qwen35",
                                         .model_type = "qwen3_5_text",
                                         .class_name = "Qwen3_5ForCausalLM",
                                         .defaults = kDenseDefaults,
                                         .layer_types = LayerTypes::kRecurrent,
                                         .is_partly_rotated = true,
                                         .names = kHfNames,
                                         .gguf_names = kGgufNames,
                                         .norm_offset = 1,
                                         .may_be_qwen3_reranker = true},
                               .configure = configure_qwen3_5,
                               .build = build_decoder};

extern const ModelSpec kQwen35MoeSpec;
const ModelSpec kQwen35MoeSpec = {.files = {.gguf = "qwen35moe",
                                            .model_type = "qwen3_5_moe_text",
                                            .class_name = "Qwen3_5MoeForCausalLM",
                                            .defaults = kMoeDefaults,
                                            .layer_types = LayerTypes::kRecurrent,
                                            .is_partly_rotated = true,
                                            .names = kHfNames,
                                            .gguf_names = kGgufNames,
                                            .experts = ExpertTensors::kStackedAlone,
                                            .norm_offset = 1,
                                            .may_be_qwen3_reranker = true},
                                  .configure = configure_qwen3_5,
                                  .build = build_decoder};

}  // namespace sluice
