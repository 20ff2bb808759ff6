// SPDX-License-Identifier: Apache-2.0
// DeepSeek V2 and V3 and the models built like them (R1, Kimi-K2, Moonlight, GLM-4.7-Flash, JoyAI,
// Sarvam-105B): latent attention; leading dense layers, then experts beside shared ones. V2's
// router is a softmax whose weights are not normalized, V3's sigmoids with a bias; both choose in
// groups of experts. Youtu-LLM has V3's attention and dense layers alone.
// V3.2 and GLM-5 have indexers, whose keys rotate in halves and in pairs.
#include <span>

#include "engine/core/log.h"
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/derived_defaults.h"
#include "engine/models/latent_config.h"

namespace sluice {
namespace {

constexpr KeyDefault kV2Defaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
    {"q_lora_rank", 1536U},
    {"kv_lora_rank", 512U},
    {"qk_nope_head_dim", 128U},
    {"qk_rope_head_dim", 64U},
    {"v_head_dim", 128U},
    {"n_routed_experts", 64U},
    {"n_shared_experts", 2U},
    {"moe_intermediate_size", 1407U},
    {"first_k_dense_replace", 0U},
    {"topk_method", "greedy"},
};

constexpr KeyDefault kV3Defaults[] = {
    {"num_attention_heads", 128U},
    {"max_position_embeddings", 4096U},
    {"rms_norm_eps", 1e-6},
    {"q_lora_rank", 1536U},
    {"kv_lora_rank", 512U},
    {"qk_nope_head_dim", 128U},
    {"qk_rope_head_dim", 64U},
    {"v_head_dim", 128U},
    {"n_routed_experts", 256U},
    {"n_shared_experts", 1U},
    {"num_experts_per_tok", 8U},
    {"moe_intermediate_size", 2048U},
    {"routed_scaling_factor", 2.5},
    {"n_group", 8U},
    {"topk_group", 4U},
    {"first_k_dense_replace", 3U},
};

constexpr KeyDefault kSarvamMlaDefaults[] = {
    {"num_attention_heads", 64U},
    {"max_position_embeddings", 4096U},
    {"rms_norm_eps", 1e-6},
    {"kv_lora_rank", 512U},
    {"qk_nope_head_dim", 128U},
    {"qk_rope_head_dim", 64U},
    {"v_head_dim", 128U},
    {"num_experts", 128U},
    {"num_shared_experts", 1U},
    {"num_experts_per_tok", 8U},
    {"moe_intermediate_size", 2048U},
    {"routed_scaling_factor", 2.5},
    {"first_k_dense_replace", 1U},
};

constexpr KeyDefault kGlm4MoeLiteDefaults[] = {
    {"num_attention_heads", 20U},
    {"max_position_embeddings", 202752U},
    {"rms_norm_eps", 1e-5},
    {"q_lora_rank", 768U},
    {"kv_lora_rank", 512U},
    {"qk_nope_head_dim", 192U},
    {"qk_rope_head_dim", 64U},
    {"v_head_dim", 256U},
    {"n_routed_experts", 64U},
    {"n_shared_experts", 1U},
    {"num_experts_per_tok", 4U},
    {"moe_intermediate_size", 1536U},
    {"routed_scaling_factor", 1.8},
    {"n_group", 1U},
    {"topk_group", 1U},
    {"first_k_dense_replace", 1U},
};

constexpr auto kV32Defaults =
    derived_from(std::span(kV3Defaults),
                 {{"max_position_embeddings", 163840U}},
                 {{"index_topk", 2048U}, {"index_head_dim", 128U}, {"index_n_heads", 64U}});

constexpr auto kGlmMoeDsaDefaults =
    derived_from(std::span(kV3Defaults),
                 {{"num_attention_heads", 64U},
                  {"max_position_embeddings", 202752U},
                  {"rms_norm_eps", 1e-5},
                  {"q_lora_rank", 2048U},
                  {"qk_nope_head_dim", 192U},
                  {"v_head_dim", 256U},
                  {"n_group", 1U},
                  {"topk_group", 1U}},
                 {{"index_topk", 2048U}, {"index_head_dim", 128U}, {"index_n_heads", 32U}});

constexpr KeyDefault kYoutuDefaults[] = {
    {"num_attention_heads", 16U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-6},
    {"q_lora_rank", 1536U},
    {"kv_lora_rank", 512U},
    {"qk_nope_head_dim", 128U},
    {"qk_rope_head_dim", 64U},
    {"v_head_dim", 128U},
};

constexpr RopeTypeName kRopeTypeNames[] = {{"deepseek_yarn", "yarn"}};
constexpr std::string_view kGgufKeys[] = {"expert_weights_norm"};

// The layers in front are dense, and so may all be.
bool has_experts(const ModelConfig& config) { return config.has(FfnKind::kExperts); }

// A model whose first GGUF files do not say that its experts are in groups. llama.cpp chooses from
// all experts for such a file; its directory does not.
struct UnsaidGroups {
  int32_t layers;
  int32_t experts;
  int32_t vocabulary;
  int32_t groups;
  int32_t chosen;
};

constexpr UnsaidGroups kUnsaidGroups[] = {
    {.layers = 61, .experts = 256, .vocabulary = 129280, .groups = 8, .chosen = 4},  // V3, R1
    {.layers = 60, .experts = 160, .vocabulary = 102400, .groups = 8, .chosen = 3},  // V2, V2.5
};

void add_unsaid_groups(const Checkpoint& checkpoint, ModelConfig& config) {
  if (checkpoint.kind() != CheckpointKind::kGguf) return;
  if (checkpoint.metadata().has("expert_group_count")) return;
  for (const UnsaidGroups& model : kUnsaidGroups) {
    if (model.layers != config.num_layers || model.experts != config.moe.num_experts ||
        model.vocabulary != config.vocab_size ||
        model.experts / model.groups * model.chosen < config.moe.top_k) {
      continue;
    }
    config.moe.router.num_groups = model.groups;
    config.moe.router.groups_kept = model.chosen;
    log_event(LogLevel::kInfo,
              "expert_groups_assumed",
              "file",
              checkpoint.path(),
              "groups",
              model.groups,
              "chosen",
              model.chosen);
  }
}

Expected<void> use_v2_router(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  kernels::Router& router = config.moe.router;
  router.group_rule = kernels::GroupRule::kBest;
  // transformers' class leaves weights as they are, whatever norm_topk_prob says. GGUF files say
  // what happens: those of V2 nothing or false, those of Mistral Large 3 true.
  router.normalize = false;
  if (checkpoint.kind() == CheckpointKind::kGguf) {
    SLUICE_TRY(router.normalize, metadata.get_bool_or("expert_weights_norm", false));
  }
  SLUICE_TRY_VOID(expect_expert_score(metadata, "softmax"));
  if (!metadata.has("expert_choice_method")) return {};
  SLUICE_TRY(const std::string method, metadata.get_string("expert_choice_method"));
  if (method == "greedy") {
    router.num_groups = 0;
  } else if (method != "group_limited_greedy") {
    return metadata.wrong(
        "expert_choice_method", "\"" + method + "\"", "greedy or group_limited_greedy");
  }
  return {};
}

Expected<void> configure_v2(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(read_latents(checkpoint, config));
  return has_experts(config) ? use_v2_router(checkpoint, config) : Expected<void>();
}

// A GGUF file of V2 has the same architecture as one of V3, and a softmax, which is also what one
// without a gating function means; but the first files of GLM-4.7-Flash, which has 47 layers (48
// with its module for a further token) and a vocabulary of its own, mean sigmoids.
Expected<void> configure_v3(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr int32_t kFlashLayers = 47;
  constexpr int32_t kFlashVocabulary = 154880;
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(read_latents(checkpoint, config));
  if (!has_experts(config)) return {};
  add_unsaid_groups(checkpoint, config);
  const int32_t layers = config.num_layers;
  const bool is_flash = config.vocab_size == kFlashVocabulary &&
                        (layers == kFlashLayers || layers == kFlashLayers + 1);
  const bool is_softmax = config.moe.router.score == kernels::RouterScore::kSoftmax;
  const bool states_score = metadata.has("expert_gating_func");
  if (checkpoint.kind() == CheckpointKind::kGguf && is_softmax && (states_score || !is_flash)) {
    return use_v2_router(checkpoint, config);
  }
  return read_sigmoid_experts(checkpoint, config);
}

Expected<void> configure_v32(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(configure_v3(checkpoint, config));
  return read_indexers(checkpoint, kernels::RopeStyle::kHalves, config);
}

// The first files of GLM-5.2, which has a longer context than the models before it, do not say that
// three of four layers share the choice of one before them, from the third on.
Expected<void> configure_glm_moe_dsa(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr int32_t kSharingContext = 1 << 20;
  SLUICE_TRY_VOID(configure_v3(checkpoint, config));
  SLUICE_TRY_VOID(read_indexers(checkpoint, kernels::RopeStyle::kInterleaved, config));
  const bool states_types = checkpoint.metadata().has("attention.indexer.types");
  if (checkpoint.kind() != CheckpointKind::kGguf || states_types) return {};
  for (int32_t i = 2; i < config.num_layers && config.context_len >= kSharingContext; ++i) {
    if (i % 4 != 2) config.layers[static_cast<size_t>(i)].key_choice = KeyChoice::kEarlier;
  }
  return {};
}

// Directories of these differ in names and defaults; their GGUF files have one architecture, which
// V3's reads.
using Configure = Expected<void> (*)(const Checkpoint&, ModelConfig&);

constexpr ModelSpec spec_of(std::string_view model_type,
                            std::string_view class_name,
                            std::span<const KeyDefault> defaults,
                            Configure configure,
                            bool reads_gguf = false) {
  return {.files = {.gguf = "deepseek2",
                    .reads_gguf = reads_gguf,
                    .model_type = model_type,
                    .class_name = class_name,
                    .defaults = defaults,
                    .rope_type_names = kRopeTypeNames,
                    .names = kLatentNames,
                    .pairs_rows = true,
                    .pairs_rows_in_gguf = true,
                    .has_latents = true},
          .configure = configure,
          .build = build_decoder,
          .gguf_keys = kGgufKeys};
}

constexpr ModelSpec sparse_spec_of(std::string_view gguf,
                                   std::string_view model_type,
                                   std::string_view class_name,
                                   std::span<const KeyDefault> defaults,
                                   Configure configure) {
  ModelSpec spec = spec_of(model_type, class_name, defaults, configure, true);
  spec.files.gguf = gguf;
  spec.files.gguf_names = kIndexerGgufNames;
  spec.files.has_indexers = true;
  return spec;
}

}  // namespace

extern const ModelSpec kDeepseekV2Spec;
const ModelSpec kDeepseekV2Spec =
    spec_of("deepseek_v2", "DeepseekV2ForCausalLM", kV2Defaults, configure_v2);

extern const ModelSpec kDeepseekV3Spec;
// Files of Mistral Large 3 have this architecture too, and queries that grow with their positions.
const ModelSpec kDeepseekV3Spec = [] {
  ModelSpec spec = spec_of("deepseek_v3", "DeepseekV3ForCausalLM", kV3Defaults, configure_v3, true);
  spec.files.scales_queries = true;
  return spec;
}();

// Kimi-K2's directories name themselves, and the class of V3.
extern const ModelSpec kKimiK2Spec;
const ModelSpec kKimiK2Spec =
    spec_of("kimi_k2", "DeepseekV3ForCausalLM", kV3Defaults, configure_v3);

// JoyAI-LLM-Flash's do as well.
extern const ModelSpec kJoyAiSpec;
const ModelSpec kJoyAiSpec =
    spec_of("joyai_llm_flash", "DeepseekV3ForCausalLM", kV3Defaults, configure_v3);

// Sarvam-105B's have no compressed queries and no groups, unless they say so.
extern const ModelSpec kSarvamMlaSpec;
const ModelSpec kSarvamMlaSpec =
    spec_of("sarvam_mla", "SarvamMLAForCausalLM", kSarvamMlaDefaults, configure_v3);

extern const ModelSpec kGlm4MoeLiteSpec;
const ModelSpec kGlm4MoeLiteSpec =
    spec_of("glm4_moe_lite", "Glm4MoeLiteForCausalLM", kGlm4MoeLiteDefaults, configure_v3);

extern const ModelSpec kYoutuSpec;
const ModelSpec kYoutuSpec = [] {
  ModelSpec spec = spec_of("youtu", "YoutuForCausalLM", kYoutuDefaults, configure_v3);
  spec.files.ties_embedding = true;
  return spec;
}();

// The first directories of Youtu-LLM, with code beside them, name themselves so.
extern const ModelSpec kYoutuLlmSpec;
const ModelSpec kYoutuLlmSpec = [] {
  ModelSpec spec = kYoutuSpec;
  spec.files.model_type = "youtu_llm";
  return spec;
}();

extern const ModelSpec kDeepseekV32Spec;
const ModelSpec kDeepseekV32Spec = sparse_spec_of(
    "deepseek32", "deepseek_v32", "DeepseekV32ForCausalLM", kV32Defaults, configure_v32);

extern const ModelSpec kGlmMoeDsaSpec;
const ModelSpec kGlmMoeDsaSpec = sparse_spec_of(
    "glm-dsa", "glm_moe_dsa", "GlmMoeDsaForCausalLM", kGlmMoeDsaDefaults, configure_glm_moe_dsa);

}  // namespace sluice
