// SPDX-License-Identifier: Apache-2.0
// Kimi-Linear: three layers of the gated delta rule whose channels decay apart (KDA), then one of
// latent attention without positions; experts chosen by sigmoids in groups, beside shared ones.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/latent_config.h"
#include "engine/models/recurrent_layers.h"
#include "kernels/recurrent.h"

namespace sluice {
namespace {

constexpr KeyDefault kKimiLinearDefaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 1048576U},
    {"rms_norm_eps", 1e-5},
    {"kv_lora_rank", 512U},
    {"qk_nope_head_dim", 128U},
    {"qk_rope_head_dim", 64U},
    {"v_head_dim", 128U},
    {"num_experts", 256U},
    {"num_experts_per_token", 8U},
    {"moe_intermediate_size", 1024U},
    {"num_shared_experts", 1U},
    {"routed_scaling_factor", 2.446},
    {"first_k_dense_replace", 1U},
    {"linear_head_dim", 128U},
    {"linear_num_heads", 32U},
    {"linear_conv_kernel_dim", 4U},
};

// transformers writes dense halves as if they had experts.
constexpr TensorName kKimiLinearNames[] = {
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"self_attn.q_conv1d", "delta_conv_q"},
    {"self_attn.k_conv1d", "delta_conv_k"},
    {"self_attn.v_conv1d", "delta_conv_v"},
    {"self_attn.A_log", "delta_log_rate.weight"},
    {"self_attn.dt_bias", "delta_dt.bias"},
    {"self_attn.f_a_proj", "delta_decay_a"},
    {"self_attn.f_b_proj", "delta_decay_b"},
    {"self_attn.g_a_proj", "delta_gate_a"},
    {"self_attn.g_b_proj", "delta_gate_b"},
    {"self_attn.b_proj", "delta_beta"},
    {"self_attn.o_norm", "delta_norm"},
    {"block_sparse_moe.gate_proj", "ffn_gate"},
    {"block_sparse_moe.up_proj", "ffn_up"},
    {"block_sparse_moe.down_proj", "ffn_down"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"block_sparse_moe.experts.#.w1", "ffn_gate_exps"},
    {"block_sparse_moe.experts.#.w3", "ffn_up_exps"},
    {"block_sparse_moe.experts.#.w2", "ffn_down_exps"},
    {"block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"},
    {"block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"},
};

constexpr TensorName kKimiLinearGgufNames[] = {
    {"ssm_conv1d_q", "delta_conv_q"},
    {"ssm_conv1d_k", "delta_conv_k"},
    {"ssm_conv1d_v", "delta_conv_v"},
    {"ssm_a", "delta_rate"},
    {"ssm_dt", "delta_dt"},
    {"ssm_f_a", "delta_decay_a"},
    {"ssm_f_b", "delta_decay_b"},
    {"ssm_g_a", "delta_gate_a"},
    {"ssm_g_b", "delta_gate_b"},
    {"ssm_beta", "delta_beta"},
    {"ssm_norm", "delta_norm"},
};

constexpr std::string_view kKimiLinearGgufKeys[] = {"expert_weights_norm"};

// The heads of delta layers have one width, and in GGUF files the number of those of attention.
Expected<void> read_kimi_heads(const Checkpoint& checkpoint, DeltaConfig& delta) {
  constexpr uint64_t kMostHeads = 1024;
  const bool is_file = checkpoint.kind() == CheckpointKind::kGguf;
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(
      delta.key_dim,
      metadata.get_count(is_file ? "kda.head_dim" : "ssm.state_size", kernels::kMaxStateKeys));
  SLUICE_TRY(delta.num_key_heads,
             metadata.get_count(is_file ? "attention.head_count" : "ssm.group_count", kMostHeads));
  delta.num_value_heads = delta.num_key_heads;
  delta.value_dim = delta.key_dim;
  return {};
}

Expected<void> configure_kimi_linear(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(read_latents(checkpoint, config));
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  SLUICE_TRY(const bool lacks_positions, metadata.get_bool_or("attention.lacks_positions", true));
  if (!lacks_positions) {
    return metadata.wrong("attention.lacks_positions", "false", "true: latents do not rotate");
  }
  const bool is_file = checkpoint.kind() == CheckpointKind::kGguf;
  if (!is_file && !metadata.has("attention.recurrent_layers")) {
    return metadata.wrong("attention.recurrent_layers", "nothing", "a list of layers");
  }
  SLUICE_TRY_VOID(read_recurrent_layers(checkpoint, MixerKind::kDelta, 4, config));
  DeltaConfig& delta = config.delta;
  SLUICE_TRY_VOID(read_kimi_heads(checkpoint, delta));
  delta.has_parts_apart = true;
  delta.gate_rank = delta.key_dim;
  delta.gate_function = kernels::GateFunction::kSigmoid;
  if (!config.has(FfnKind::kExperts)) return {};
  return read_sigmoid_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kKimiLinearSpec;
const ModelSpec kKimiLinearSpec = {.files = {.gguf = "kimi-linear",
                                             .model_type = "kimi_linear",
                                             .class_name = "KimiLinearForCausalLM",
                                             .defaults = kKimiLinearDefaults,
                                             .layer_types = LayerTypes::kRecurrent,
                                             .names = kKimiLinearNames,
                                             .gguf_names = kKimiLinearGgufNames,
                                             .has_latents = true},
                                   .configure = configure_kimi_linear,
                                   .build = build_decoder,
                                   .gguf_keys = kKimiLinearGgufKeys};

}  // namespace sluice
