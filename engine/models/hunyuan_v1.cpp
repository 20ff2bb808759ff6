// SPDX-License-Identifier: Apache-2.0
// Hunyuan v1, dense: heads of q and k are normed after their rotation, whose base is stretched.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kHunyuanDefaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-5},
};

constexpr TensorName kHunyuanNames[] = {
    {"self_attn.query_layernorm", "attn_q_norm"},
    {"self_attn.key_layernorm", "attn_k_norm"},
};

Expected<void> configure_hunyuan(const Checkpoint&, ModelConfig& config) {
  config.qk_norm = QkNorm::kRotatedHead;
  return {};
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

}  // namespace sluice
