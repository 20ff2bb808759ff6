// SPDX-License-Identifier: Apache-2.0
// GLM-4.5, 4.6 and 4.7: leading dense layers, then experts that are chosen by sigmoids with a bias
// beside shared ones; the first half of each head rotates. A module after the layers guesses a
// further token. The text models of GLM-4.5V and 4.6V: the same, with three positions for a token,
// which are equal for text.
#include <span>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/derived_defaults.h"

namespace sluice {
namespace {

constexpr KeyDefault kGlm4MoeDefaults[] = {
    {"num_attention_heads", 96U},
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
    {"partial_rotary_factor", 0.5},
    {"moe_intermediate_size", 1408U},
    {"num_experts_per_tok", 8U},
    {"n_shared_experts", 1U},
    {"n_routed_experts", 128U},
    {"first_k_dense_replace", 1U},
};

constexpr auto kGlm4vMoeDefaults =
    derived_from(std::span(kGlm4MoeDefaults), {{"max_position_embeddings", 65536U}});

constexpr TensorName kGlm4MoeGgufNames[] = {{"post_attention_norm", "ffn_norm"}};

constexpr std::string_view kOwnGlm4MoeHfKeys[] = {
    "n_routed_experts", "n_shared_experts", "first_k_dense_replace", "use_qk_norm"};
constexpr auto kGlm4MoeHfKeys = joined_lists(kSigmoidExpertHfKeys, kOwnGlm4MoeHfKeys);

constexpr std::string_view kGlm4MoeGgufKeys[] = {"expert_weights_norm"};

Expected<void> configure_glm4_moe(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const bool has_norms,
             metadata.get_bool_or("attention.qk_norm", checkpoint.has("blk.0.attn_q_norm.weight")));
  if (has_norms) config.qk_norm = QkNorm::kHead;
  config.attention_out_bias = false;
  return read_sigmoid_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kGlm4MoeSpec;
const ModelSpec kGlm4MoeSpec = {.files = {.gguf = "glm4moe",
                                          .model_type = "glm4_moe",
                                          .class_name = "Glm4MoeForCausalLM",
                                          .defaults = kGlm4MoeDefaults,
                                          .is_partly_rotated = true,
                                          .gguf_names = kGlm4MoeGgufNames},
                                .configure = configure_glm4_moe,
                                .build = build_decoder,
                                .hf_keys = kGlm4MoeHfKeys,
                                .gguf_keys = kGlm4MoeGgufKeys};

extern const ModelSpec kGlm4vMoeSpec;
const ModelSpec kGlm4vMoeSpec = {.files = {.gguf = "glm4moe",
                                           .reads_gguf = false,
                                           .model_type = "glm4v_moe_text",
                                           .class_name = "Glm4vMoeForConditionalGeneration",
                                           .defaults = kGlm4vMoeDefaults,
                                           .layer_types = LayerTypes::kFull,
                                           .is_partly_rotated = true,
                                           .gguf_names = kGlm4MoeGgufNames,
                                           .has_image_positions = true},
                                 .configure = configure_glm4_moe,
                                 .build = build_decoder,
                                 .gguf_keys = kGlm4MoeGgufKeys};

}  // namespace sluice
