// SPDX-License-Identifier: Apache-2.0
// gpt-oss: attention sinks, biases (those of attention may be absent), clamped gates in a mixture
// of experts, every second layer windowed.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "kernels/rope_scaling.h"

namespace sluice {
namespace {

constexpr KeyDefault kGptOssDefaults[] = {
    {"num_local_experts", 128U},
    {"num_experts_per_tok", 4U},
    {"num_attention_heads", 64U},
    {"num_key_value_heads", 8U},
    {"head_dim", 64U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
    {"sliding_window", 128U},
    {"rope_theta", 150000U},
};

// That of the published models.
constexpr KeyDefault kGptOssRopeDefaults[] = {
    {"rope_type", "yarn"},
    {"factor", 32U},
    {"truncate", false},
    {"original_max_position_embeddings", 4096U},
};

// What GateFunction::kClampedSwiglu does.
constexpr RequiredNumber kGptOssRequired[] = {{"swiglu_limit", 7}, {"swiglu_alpha", 1.702}};

constexpr TensorName kGptOssNames[] = {
    {"mlp.router", "ffn_gate_inp"},
};

constexpr TensorName kGptOssGgufNames[] = {
    {"post_attention_norm", "ffn_norm"},
};

constexpr std::string_view kGptOssHfKeys[] = {
    "layer_types", "num_local_experts", "num_experts_per_tok", "truncate"};

// GGUF does not state that the ends of the ramp are not rounded.
Expected<void> use_exact_ramp(const Metadata& metadata, ModelConfig& config) {
  kernels::RopeParams& rope = config.ropes.front();
  SLUICE_TRY(const double factor, metadata.get_positive_or("rope.scaling.factor", 1));
  SLUICE_TRY(const double original,
             metadata.get_positive_or("rope.scaling.original_context_length", 4096));
  rope.freq_factors = kernels::yarn_freq_factors(
      rope, {.factor = factor, .original_context = original, .truncate = false});
  return {};
}

Expected<void> configure_gpt_oss(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.attention_sinks = true;
  SLUICE_TRY(config.qkv_bias, metadata.get_bool_or("attention_bias", true));
  config.attention_out_bias = config.qkv_bias;
  config.moe.bias = true;
  config.gate_function = kernels::GateFunction::kClampedSwiglu;
  SLUICE_TRY_VOID(check_experts(checkpoint, config));
  if (checkpoint.kind() == CheckpointKind::kGguf && metadata.has("rope.scaling.type")) {
    SLUICE_TRY_VOID(use_exact_ramp(metadata, config));
  }
  return read_window_pattern(checkpoint, 2, config);
}

}  // namespace

extern const ModelSpec kGptOssSpec;
const ModelSpec kGptOssSpec = {.files = {.gguf = "gpt-oss",
                                         .model_type = "gpt_oss",
                                         .class_name = "GptOssForCausalLM",
                                         .defaults = kGptOssDefaults,
                                         .rope_defaults = kGptOssRopeDefaults,
                                         .required = kGptOssRequired,
                                         .names = kGptOssNames,
                                         .gguf_names = kGptOssGgufNames,
                                         .experts = ExpertTensors::kTransposed},
                               .configure = configure_gpt_oss,
                               .build = build_decoder,
                               .hf_keys = kGptOssHfKeys};

}  // namespace sluice
