// SPDX-License-Identifier: Apache-2.0
// GLM-4, dense: norms around each half, neighbours rotate in the first half of each head, biases of
// q, k and v, fused gate and up. The text models of GLM-4.1V and 4.6V-Flash: the same, with three
// positions for a token, which are equal for text.
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

constexpr KeyDefault kGlm4vDefaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 2U},
    {"max_position_embeddings", 32768U},
    {"rms_norm_eps", 1e-5},
};

constexpr TensorName kGlm4Names[] = {
    {"post_self_attn_layernorm", "post_attention_norm"},
    {"post_mlp_layernorm", "post_ffw_norm"},
    {"mlp.gate_up_proj", "ffn_up"},
};

Expected<void> configure_glm4(const Checkpoint& checkpoint, ModelConfig& config) {
  // Files with three positions have the rows of what rotates in another order.
  constexpr const char* kSections = "rope.dimension_sections";
  if (checkpoint.kind() == CheckpointKind::kGguf && checkpoint.metadata().has(kSections)) {
    return checkpoint.metadata().wrong(kSections, "an array", "nothing: the model's directory is read");
  }
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

extern const ModelSpec kGlm4vSpec;
const ModelSpec kGlm4vSpec = {.files = {.gguf = "glm4",
                                        .reads_gguf = false,
                                        .model_type = "glm4v_text",
                                        .class_name = "Glm4vForConditionalGeneration",
                                        .defaults = kGlm4vDefaults,
                                        .layer_types = LayerTypes::kFull,
                                        .is_partly_rotated = true,
                                        .names = kGlm4Names,
                                        .pairs_rows = true,
                                        .pairs_rows_in_gguf = true,
                                        .has_image_positions = true},
                              .configure = configure_glm4,
                              .build = build_decoder};

}  // namespace sluice
