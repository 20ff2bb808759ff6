// SPDX-License-Identifier: Apache-2.0
// GLM-4, dense: norms around each half, neighbours rotate in the first half of each head, biases of
// q, k and v, fused gate and up.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kGlm4Defaults[] = {
    {"num_key_value_heads", 2U},
    {"head_dim", 128U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1.5625e-7},
    {"partial_rotary_factor", 0.5},
    {"attention_bias", true},
};

constexpr TensorName kGlm4Names[] = {
    {"post_self_attn_layernorm", "post_attention_norm"},
    {"post_mlp_layernorm", "post_ffw_norm"},
    {"mlp.gate_up_proj", "ffn_up"},
};

Expected<void> configure_glm4(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_placement = NormPlacement::kAround;
  config.attention_out_bias = false;
  if (checkpoint.is_dummy()) config.fused_gate_up = true;
  return {};
}

}  // namespace

extern const ModelSpec kGlm4Spec;
const ModelSpec kGlm4Spec = {.files = {.gguf = "glm4",
                                       .model_type = "glm4",
                                       .class_name = "Glm4ForCausalLM",
                                       .defaults = kGlm4Defaults,
                                       .is_partly_rotated = true,
                                       .names = kGlm4Names,
                                       .pairs_rows = true,
                                       .pairs_rows_in_gguf = true},
                             .configure = configure_glm4,
                             .build = build_decoder};

}  // namespace sluice
