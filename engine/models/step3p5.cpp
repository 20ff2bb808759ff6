// SPDX-License-Identifier: Apache-2.0
// Step-3.5: windowed layers with more heads and a rotation of their own between full ones, a gate
// for each head of attention, leading dense layers, then experts that are chosen by sigmoids with a
// bias beside a shared one; gates of the last layers are limited.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/rope_reader.h"

namespace sluice {
namespace {

constexpr uint64_t kStepLeadingDense = 3;
constexpr double kMostLimit = 1e30;  // of gates

constexpr KeyDefault kStep3p5Defaults[] = {
    {"num_attention_heads", 64U},
    {"num_key_value_heads", 8U},
    {"head_dim", 128U},
    {"max_position_embeddings", 128000U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 10000U},
    {"n_routed_experts", 288U},
    {"num_experts_per_tok", 8U},
    {"moe_intermediate_size", 1280U},
    {"share_expert_dim", 1280U},
    {"first_k_dense_replace", kStepLeadingDense},
};

constexpr TensorName kStep3p5Names[] = {
    {"self_attn.g_proj", "attn_gate"},
    {"moe.gate", "ffn_gate_inp"},
    {"moe.router_bias", "exp_probs_b.bias"},
    {"moe.gate_proj", "ffn_gate_exps"},
    {"moe.up_proj", "ffn_up_exps"},
    {"moe.down_proj", "ffn_down_exps"},
    {"share_expert.gate_proj", "ffn_gate_shexp"},
    {"share_expert.up_proj", "ffn_up_shexp"},
    {"share_expert.down_proj", "ffn_down_shexp"},
};

constexpr std::string_view kStep3p5GgufKeys[] = {
    "expert_weights_norm", "swiglu_clamp_exp", "rope.dimension_count"};

bool is_step_file(const Checkpoint& checkpoint) {
  return checkpoint.kind() == CheckpointKind::kGguf;
}

Expected<void> read_step_heads(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  const bool gguf = is_step_file(checkpoint);
  const LayerConfig first = config.layers.front();
  SLUICE_TRY(
      const std::vector<int32_t> heads,
      read_layer_counts(
          metadata, gguf ? "attention.head_count" : "attention.layers_head_count", 1024, config));
  SLUICE_TRY(const std::vector<int32_t> kv_heads,
             read_layer_counts(metadata, "attention.head_count_kv", 1024, config));
  SLUICE_TRY(const int32_t local,
             metadata.get_count_or("attention.head_count_swa", 1024, first.num_heads));
  SLUICE_TRY(const int32_t local_kv,
             metadata.get_count_or("attention.head_count_kv_swa", 1024, first.num_kv_heads));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    if (layer.window > 0) {
      layer.num_heads = local;
      layer.num_kv_heads = local_kv;
    }
    if (!heads.empty()) layer.num_heads = heads[i];
    if (!kv_heads.empty()) layer.num_kv_heads = kv_heads[i];
    if (layer.num_heads % layer.num_kv_heads == 0) continue;
    return metadata.wrong("attention.head_count",
                          std::to_string(layer.num_heads),
                          "a multiple of the KV heads, " + std::to_string(layer.num_kv_heads));
  }
  return {};
}

// GGUF states whole heads, of which full layers rotate half.
Expected<void> read_step_rotations(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(use_local_rope(metadata, config.ropes.front().freq_base, config));
  if (is_step_file(checkpoint)) config.ropes.front().rotary_dim /= 2;
  return read_local_part(metadata, 1, config);
}

// Returns a layer's limit of gates as a file has it; 0: none.
Expected<float> limit_of(const Metadata& metadata, const char* key, double listed) {
  if (listed >= 0 && listed <= kMostLimit) return static_cast<float>(listed);
  return metadata.wrong(key, std::to_string(listed), "0, or a limit");
}

Expected<void> read_step_limits(const Metadata& metadata, ModelConfig& config) {
  for (const auto& [key, limit] : {std::pair("swiglu_clamp_exp", &LayerConfig::expert_limit),
                                   std::pair("swiglu_clamp_shexp", &LayerConfig::dense_limit)}) {
    if (!metadata.has(key)) continue;
    SLUICE_TRY(const std::vector<double> listed, metadata.get_numbers(key));
    if (listed.size() < config.layers.size()) {
      return metadata.wrong(key,
                            std::to_string(listed.size()) + " elements",
                            "one for each of " + std::to_string(config.num_layers) + " layers");
    }
    for (size_t i = 0; i < config.layers.size(); ++i) {
      SLUICE_TRY(config.layers[i].*limit, limit_of(metadata, key, listed[i]));
    }
  }
  return {};
}

// After the layers, the lists go on for the modules.
Expected<void> read_step_module(const Metadata& metadata, ModelConfig& config) {
  SLUICE_TRY(const bool is_windowed, metadata.get_bool_or("attention.sliding_module", true));
  set_dense_module(is_windowed, config);
  config.head.reads_unnormed = true;
  constexpr const char* kLimits = "swiglu_clamp_shexp";
  const auto listed = metadata.get_numbers(kLimits);
  const size_t place = config.layers.size();
  if (!listed || listed->size() <= place) return {};
  SLUICE_TRY(config.module_layer->dense_limit, limit_of(metadata, kLimits, (*listed)[place]));
  return {};
}

Expected<void> configure_step3p5(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  constexpr int32_t kNone = 1;
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, kNone, config));
  SLUICE_TRY_VOID(read_step_heads(checkpoint, config));
  SLUICE_TRY_VOID(read_step_rotations(checkpoint, config));
  SLUICE_TRY_VOID(read_step_limits(metadata, config));
  SLUICE_TRY_VOID(read_dense_width(metadata, config));
  SLUICE_TRY(config.attention_scale, read_attention_scale(metadata, -1, config));
  config.qk_norm = QkNorm::kHead;
  config.attention_gate = true;
  config.gates_heads = true;
  SLUICE_TRY_VOID(read_sigmoid_experts(checkpoint, config));
  config.moe.router.epsilon = 0;
  return read_step_module(metadata, config);
}

}  // namespace

extern const ModelSpec kStep3p5Spec;
const ModelSpec kStep3p5Spec = {.files = {.gguf = "step35",
                                          .model_type = "step3p5",
                                          .class_name = "Step3p5ForCausalLM",
                                          .defaults = kStep3p5Defaults,
                                          .is_partly_rotated = true,
                                          .scales_full_layers_only = true,
                                          .has_unlike_layers = true,
                                          .names = kStep3p5Names,
                                          .norm_offset = 1,
                                          .has_module_output = true},
                                .configure = configure_step3p5,
                                .build = build_decoder,
                                .gguf_keys = kStep3p5GgufKeys};

}  // namespace sluice
