// SPDX-License-Identifier: Apache-2.0
// Hunyuan v1: heads of q and k are normed after their rotation, whose base is stretched; and the
// same with experts in every layer beside a shared one of their size.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kHunyuanDefaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-5},
};

constexpr KeyDefault kHunyuanMoeDefaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-5},
    {"num_experts", 1U},
    {"moe_topk", 1U},
};

constexpr TensorName kHunyuanMoeNames[] = {
    {"self_attn.query_layernorm", "attn_q_norm"},
    {"self_attn.key_layernorm", "attn_k_norm"},
    {"mlp.gate.wg", "ffn_gate_inp"},
    {"mlp.shared_mlp.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_mlp.up_proj", "ffn_up_shexp"},
    {"mlp.shared_mlp.down_proj", "ffn_down_shexp"},
};

constexpr std::string_view kHunyuanMoeHfKeys[] = {"num_experts", "moe_topk"};

constexpr TensorName kHunyuanNames[] = {
    {"self_attn.query_layernorm", "attn_q_norm"},
    {"self_attn.key_layernorm", "attn_k_norm"},
};

Expected<void> configure_hunyuan(const Checkpoint&, ModelConfig& config) {
  config.qk_norm = QkNorm::kRotatedHead;
  return {};
}

Expected<void> configure_hunyuan_moe(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(configure_hunyuan(checkpoint, config));
  if (checkpoint.kind() != CheckpointKind::kGguf) config.moe.shared_hidden = config.ffn_hidden;
  return check_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kHunyuanDenseSpec;
const ModelSpec kHunyuanDenseSpec = {.files = {.gguf = "hunyuan-dense",
                                               .model_type = "hunyuan_v1_dense",
                                               .class_name = "HunYuanDenseV1ForCausalLM",
                                               .defaults = kHunyuanDefaults,
                                               .names = kHunyuanNames},
                                     .configure = configure_hunyuan,
                                     .build = build_decoder};

extern const ModelSpec kHunyuanMoeSpec;
const ModelSpec kHunyuanMoeSpec = {.files = {.gguf = "hunyuan-moe",
                                             .model_type = "hunyuan_v1_moe",
                                             .class_name = "HunYuanMoEV1ForCausalLM",
                                             .defaults = kHunyuanMoeDefaults,
                                             .names = kHunyuanMoeNames},
                                   .configure = configure_hunyuan_moe,
                                   .build = build_decoder,
                                   .hf_keys = kHunyuanMoeHfKeys};

}  // namespace sluice
