// SPDX-License-Identifier: Apache-2.0
// GLM-4, dense: norms around each half, neighbours rotate in the first half of each head, biases of
// q, k and v, fused gate and up. The text models of GLM-4.1V and 4.6V-Flash: the same, with three
// positions for a token, which are equal for text.
#include <numeric>
#include <string>
#include <vector>

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

// Files with three positions have what rotates in halves: llama.cpp's converter moves the rows of q
// and k, as its rotation by three positions, which are equal for text, knows no other order.
Expected<void> read_sections(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr const char* kSections = "rope.dimension_sections";
  const Metadata& metadata = checkpoint.metadata();
  if (checkpoint.kind() != CheckpointKind::kGguf || !metadata.has(kSections)) return {};
  SLUICE_TRY(const std::vector<double> sections, metadata.get_numbers(kSections));
  kernels::RopeParams& rope = config.ropes.front();
  const double pairs = std::accumulate(sections.begin(), sections.end(), 0.0);
  const bool are_three = sections.size() >= 3 && sections[0] > 0 && sections[1] > 0 &&
                         (sections.size() == 3 || sections[3] == 0);
  if (!are_three || pairs != rope.rotary_dim / 2) {
    return metadata.wrong(kSections,
                          std::to_string(sections.size()) + " others",
                          "three that share " + std::to_string(rope.rotary_dim / 2) + " pairs");
  }
  rope.style = kernels::RopeStyle::kHalves;
  return {};
}

Expected<void> configure_glm4(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(read_sections(checkpoint, config));
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
