// SPDX-License-Identifier: Apache-2.0
// Phi-3.5-MoE: a router that weighs its two experts one after the other, norms that subtract the
// mean and have biases as all else of attention, and LongRoPE whose scale depends on the context.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kPhiMoeDefaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 1000000U},
    {"num_local_experts", 16U},
    {"num_experts_per_tok", 2U},
};

constexpr RopeTypeName kPhiMoeRopeTypeNames[] = {{"su", "longrope"}};

constexpr TensorName kPhiMoeNames[] = {
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.experts.#.w1", "ffn_gate_exps"},
    {"block_sparse_moe.experts.#.w3", "ffn_up_exps"},
    {"block_sparse_moe.experts.#.w2", "ffn_down_exps"},
};

constexpr std::string_view kPhiMoeHfKeys[] = {"num_local_experts",
                                              "num_experts_per_tok",
                                              "router_jitter_noise",
                                              "long_mscale",
                                              "lm_head_bias",
                                              "rms_norm_eps"};

constexpr std::string_view kPhiMoeGgufKeys[] = {"attention.layer_norm_rms_epsilon"};

// The two scales of LongRoPE that a directory states; a GGUF file has one.
Expected<void> read_rope_scales(const Metadata& metadata, ModelConfig& config) {
  if (config.long_rope.original_context == 0) return {};
  const double usual = config.ropes.front().attention_factor;
  SLUICE_TRY(const double near, metadata.get_positive_or("rope.scaling.short_scale", usual));
  SLUICE_TRY(const double far, metadata.get_positive_or("rope.scaling.long_scale", usual));
  config.ropes.front().attention_factor = static_cast<float>(far);
  if (near == far) return {};
  config.long_rope.short_scale = static_cast<float>(near);
  config.long_rope.long_scale = static_cast<float>(far);
  return {};
}

Expected<void> configure_phimoe(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(check_experts(checkpoint, config));
  kernels::Router& router = config.moe.router;
  router.score = kernels::RouterScore::kOneByOne;
  router.normalize = false;
  SLUICE_TRY(const double jitter, metadata.get_float_or("expert_jitter", 0.01));
  if (!(jitter >= 0 && jitter <= 1)) {
    return metadata.wrong("expert_jitter", std::to_string(jitter), "0 to 1");
  }
  router.spread = 2 * static_cast<float>(jitter);
  if (config.moe.top_k != 2) {
    return metadata.wrong("expert_used_count", std::to_string(config.moe.top_k), "2");
  }
  config.norm_bias = true;
  SLUICE_TRY_VOID(read_rope_scales(metadata, config));
  constexpr int32_t kNever = 1 << 30;
  return read_window_pattern(checkpoint, kNever, config);
}

}  // namespace

extern const ModelSpec kPhiMoeSpec;
const ModelSpec kPhiMoeSpec = {.files = {.gguf = "phimoe",
                                         .model_type = "phimoe",
                                         .class_name = "PhimoeForCausalLM",
                                         .defaults = kPhiMoeDefaults,
                                         .layer_types = LayerTypes::kAsTheWindow,
                                         .rope_type_names = kPhiMoeRopeTypeNames,
                                         .names = kPhiMoeNames,
                                         .subtracts_mean = true},
                               .configure = configure_phimoe,
                               .build = build_decoder,
                               .hf_keys = kPhiMoeHfKeys,
                               .gguf_keys = kPhiMoeGgufKeys};

}  // namespace sluice
