// SPDX-License-Identifier: Apache-2.0
// Falcon-H1: attention and Mamba-2 side by side in each layer, and factors of almost all products.
// GGUF has them in its weights, a directory beside them.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/recurrent_layers.h"

namespace sluice {
namespace {

constexpr KeyDefault kFalconH1Defaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 8192U},
    {"rms_norm_eps", 1e-5},
    {"mamba_d_ssm", 1024U},
    {"mamba_n_heads", 128U},
    {"mamba_n_groups", 1U},
    {"mamba_d_state", 256U},
    {"mamba_d_conv", 4U},
};

constexpr TensorName kFalconH1Names[] = {
    {"model.final_layernorm.weight", "output_norm.weight"},
    {"pre_ff_layernorm", "ffn_norm"},
    {"feed_forward.gate_proj", "ffn_gate"},
    {"feed_forward.up_proj", "ffn_up"},
    {"feed_forward.down_proj", "ffn_down"},
};

constexpr TensorName kNormGgufName[] = {
    {"ffn_norm", "ffn_norm.weight"},  // whose name there has no suffix
};
constexpr auto kFalconH1GgufNames = joined_lists(kMambaGgufNames, kNormGgufName);

// Reads `count` factors; all are 1 where the file has none.
Expected<std::vector<double>> read_factors(const Metadata& metadata,
                                           const char* key,
                                           size_t count) {
  if (!metadata.has(key)) return std::vector<double>(count, 1);
  SLUICE_TRY(const std::vector<double> factors, metadata.get_numbers(key));
  const bool are_positive = std::ranges::all_of(
      factors, [](double factor) { return factor > 0 && std::isfinite(factor); });
  if (factors.size() == count && are_positive) return factors;
  return metadata.wrong(key,
                        std::to_string(factors.size()) + " elements",
                        std::to_string(count) + " positive numbers");
}

// A factor of a matrix's product that is applied elsewhere: the matrix can have no bias.
Expected<double> read_moved_factor(const Checkpoint& checkpoint,
                                   const char* key,
                                   const char* stem) {
  SLUICE_TRY(const double factor, checkpoint.metadata().get_positive_or(key, 1));
  const std::string bias = std::string("blk.0.") + stem + ".bias";
  if (factor == 1 || !checkpoint.has(bias)) return factor;
  return checkpoint.metadata().wrong(
      key, std::to_string(factor) + " and a bias of its matrix", "either");
}

Expected<void> read_scales(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const double embedding, metadata.get_positive_or("embedding_scale", 1));
  SLUICE_TRY(const double logits, metadata.get_positive_or("logit_multiplier", 1));
  config.embedding_scale = static_cast<float>(embedding);
  config.logit_scale = static_cast<float>(logits);

  // Scores have the input's factor twice.
  SLUICE_TRY(const double input,
             read_moved_factor(checkpoint, "attention.input_scale", "attn_q"));
  SLUICE_TRY(const double key, read_moved_factor(checkpoint, "attention.key_scale", "attn_k"));
  SLUICE_TRY(const double output,
             read_moved_factor(checkpoint, "attention.output_scale", "attn_output"));
  config.attention_scale =
      static_cast<float>(input * input * key / std::sqrt(config.layers.front().head_dim));
  config.value_scale = static_cast<float>(input * output);

  SLUICE_TRY(const std::vector<double> parts, read_factors(metadata, "ssm.scales", 5));
  SLUICE_TRY(const double states_input, metadata.get_positive_or("ssm.input_scale", 1));
  if (states_input != 1 && checkpoint.has("blk.0.mamba_in.bias")) {
    return metadata.wrong("ssm.input_scale",
                          std::to_string(states_input) + " and a bias of its matrix",
                          "either");
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    config.mamba.scales[i] = static_cast<float>(parts[i] * states_input);
  }
  SLUICE_TRY(const double states_output,
             read_moved_factor(checkpoint, "ssm.output_scale", "mamba_out"));
  config.mamba.output_scale = static_cast<float>(states_output);

  SLUICE_TRY(const std::vector<double> dense, read_factors(metadata, "ffn_scales", 2));
  if (dense[1] != 1 && config.mlp_bias) {
    return metadata.wrong("ffn_scales", "factors and biases", "either");
  }
  config.gate_scale = static_cast<float>(dense[0]);
  config.dense_scale = static_cast<float>(dense[1]);
  return {};
}

Expected<void> configure_falcon_h1(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  for (LayerConfig& layer : config.layers) layer.mixer = MixerKind::kAttentionBesideMamba2;
  SLUICE_TRY_VOID(read_conv_taps(checkpoint, config));
  SLUICE_TRY_VOID(read_mamba(checkpoint, config));
  if (checkpoint.kind() == CheckpointKind::kGguf) {
    config.mamba.has_norm = checkpoint.has("blk.0.mamba_norm.weight");
    return {};
  }
  SLUICE_TRY(config.mamba.has_norm, metadata.get_bool_or("ssm.has_norm", false));
  SLUICE_TRY(const bool norms_first, metadata.get_bool_or("ssm.norm_before_gate", true));
  if (config.mamba.has_norm && norms_first) {
    return metadata.wrong("ssm.has_norm", "a norm before the gate", "mamba_norm_before_gate false");
  }
  return read_scales(checkpoint, config);
}

}  // namespace

extern const ModelSpec kFalconH1Spec;
const ModelSpec kFalconH1Spec = {.files = {.gguf = "falcon-h1",
                                           .model_type = "falcon_h1",
                                           .class_name = "FalconH1ForCausalLM",
                                           .defaults = kFalconH1Defaults,
                                           .layer_types = LayerTypes::kRecurrent,
                                           .names = kFalconH1Names,
                                           .gguf_names = kFalconH1GgufNames},
                                 .configure = configure_falcon_h1,
                                 .build = build_decoder};

}  // namespace sluice
