// SPDX-License-Identifier: Apache-2.0
// Hunyuan v3: Qwen3 with a leading dense layer (or as listed), then experts that are chosen by
// sigmoids with a bias beside a shared one.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kHyV3Defaults[] = {
    {"num_attention_heads", 64U},
    {"num_key_value_heads", 8U},
    {"head_dim", 128U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 11158840U},
    {"num_experts", 192U},
    {"num_experts_per_tok", 8U},
    {"num_shared_experts", 1U},
    {"moe_intermediate_size", 1536U},
    {"router_scaling_factor", 2.826},
    {"first_k_dense_replace", 1U},
};

constexpr TensorName kHyV3Names[] = {
    {"mlp.router.gate", "ffn_gate_inp"},
    {"mlp.expert_bias", "exp_probs_b.bias"},
    {"mlp.shared_mlp.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_mlp.up_proj", "ffn_up_shexp"},
    {"mlp.shared_mlp.down_proj", "ffn_down_shexp"},
};

Expected<void> configure_hy_v3(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qk_norm = QkNorm::kHead;
  return read_sigmoid_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kHyV3Spec;
const ModelSpec kHyV3Spec = {.files = {.gguf = "hy_v3",
                                       .model_type = "hy_v3",
                                       .class_name = "HYV3ForCausalLM",
                                       .defaults = kHyV3Defaults,
                                       .names = kHyV3Names},
                             .configure = configure_hy_v3,
                             .build = build_decoder};

}  // namespace sluice
