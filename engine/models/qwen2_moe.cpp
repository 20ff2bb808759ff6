// SPDX-License-Identifier: Apache-2.0
// Qwen 1.5 MoE and Qwen2 MoE: Qwen2 with experts in every layer, whose weights are not normalized,
// beside one shared expert scaled by a sigmoid.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kQwen2MoeDefaults[] = {
    {"num_attention_heads", 16U},
    {"num_key_value_heads", 16U},
    {"max_position_embeddings", 32768U},
    {"rms_norm_eps", 1e-6},
    {"num_experts", 60U},
    {"num_experts_per_tok", 4U},
    {"moe_intermediate_size", 1408U},
    {"shared_expert_intermediate_size", 5632U},
};

constexpr TensorName kQwen2MoeNames[] = {
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
};

constexpr std::string_view kQwen2MoeHfKeys[] = {"num_experts",
                                                "num_experts_per_tok",
                                                "moe_intermediate_size",
                                                "shared_expert_intermediate_size",
                                                "norm_topk_prob",
                                                "decoder_sparse_step",
                                                "mlp_only_layers"};

Expected<void> configure_qwen2_moe(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.qkv_bias = true;
  config.moe.gated_shared = true;
  SLUICE_TRY(config.moe.router.normalize, metadata.get_bool_or("expert_weights_norm", false));
  SLUICE_TRY(const int32_t every, metadata.get_count_or("decoder_sparse_step", 1024, 1));
  if (config.moe.num_experts == 0 || config.moe.shared_hidden == 0 || every != 1) {
    return metadata.wrong(every != 1 ? "decoder_sparse_step" : "expert_count",
                          std::to_string(every != 1 ? every : config.moe.num_experts),
                          "experts, and a shared one, in every layer");
  }
  SLUICE_TRY(const bool windowed, metadata.get_bool_or("use_sliding_window", false));
  if (!windowed) return {};
  return metadata.wrong("use_sliding_window", "true", "false");
}

}  // namespace

extern const ModelSpec kQwen2MoeSpec;
const ModelSpec kQwen2MoeSpec = {.files = {.gguf = "qwen2moe",
                                           .model_type = "qwen2_moe",
                                           .class_name = "Qwen2MoeForCausalLM",
                                           .defaults = kQwen2MoeDefaults,
                                           .names = kQwen2MoeNames},
                                 .configure = configure_qwen2_moe,
                                 .build = build_decoder,
                                 .hf_keys = kQwen2MoeHfKeys};

}  // namespace sluice
