// SPDX-License-Identifier: Apache-2.0
// Mistral 4: latent attention whose queries grow with their positions, and experts beside shared
// ones, chosen by a softmax inside groups.
#include <algorithm>
#include <array>
#include <iterator>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/latent_config.h"

namespace sluice {
namespace {

constexpr KeyDefault kMistral4Defaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 1048576U},
    {"rms_norm_eps", 1e-6},
    {"q_lora_rank", 1024U},
    {"kv_lora_rank", 256U},
    {"qk_nope_head_dim", 64U},
    {"qk_rope_head_dim", 64U},
    {"v_head_dim", 128U},
    {"n_routed_experts", 128U},
    {"n_shared_experts", 1U},
    {"num_experts_per_tok", 4U},
    {"moe_intermediate_size", 2048U},
    {"routed_scaling_factor", 1.0},
    {"n_group", 1U},
    {"topk_group", 1U},
    {"first_k_dense_replace", 0U},
};

// The latents' names, and those of the experts, which are stacked.
constexpr auto kMistral4Names = [] {
  constexpr TensorName kStacked[] = {{"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
                                     {"mlp.experts.down_proj", "ffn_down_exps.weight"}};
  std::array<TensorName, std::size(kLatentNames) + std::size(kStacked)> names{};
  std::ranges::copy(kStacked, std::ranges::copy(kLatentNames, names.begin()).out);
  return names;
}();

constexpr KeyDefault kMistral4Rope[] = {
    {"rope_type", "yarn"},
    {"rope_theta", 1e4},
    {"factor", 128U},
    {"original_max_position_embeddings", 8192U},
    {"beta_fast", 32U},
    {"beta_slow", 1U},
    {"mscale", 1U},
    {"mscale_all_dim", 1U},
    {"llama_4_scaling_beta", 0.1},
};

constexpr std::string_view kMistral4GgufKeys[] = {"expert_weights_norm"};

// llama.cpp's converter of directories leaves out how queries grow: as the class has it.
Expected<void> configure_mistral4(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr double kUsualGrowth = 0.1;
  SLUICE_TRY_VOID(read_latents(checkpoint, config));
  const bool is_file = checkpoint.kind() == CheckpointKind::kGguf;
  if (is_file && !checkpoint.metadata().has("attention.temperature_scale")) {
    config.ropes.front().query_scale.beta = kUsualGrowth;
  }
  if (config.moe.router.score != kernels::RouterScore::kSoftmax) {
    return checkpoint.metadata().wrong("expert_gating_func", "2", "1 (softmax)");
  }
  SLUICE_TRY(config.moe.router.normalize,
             checkpoint.metadata().get_bool_or("expert_weights_norm", true));
  return {};
}

}  // namespace

extern const ModelSpec kMistral4Spec;
const ModelSpec kMistral4Spec = {.files = {.gguf = "mistral4",
                                           .model_type = "mistral4",
                                           .class_name = "Mistral4ForCausalLM",
                                           .defaults = kMistral4Defaults,
                                           .rope_defaults = kMistral4Rope,
                                           .is_partly_rotated = true,
                                           .names = kMistral4Names,
                                           .experts = ExpertTensors::kStackedAlone,
                                           .pairs_rows = true,
                                           .pairs_rows_in_gguf = true,
                                           .scales_queries = true,
                                           .has_latents = true},
                                 .configure = configure_mistral4,
                                 .build = build_decoder,
                                 .gguf_keys = kMistral4GgufKeys};

}  // namespace sluice
