// SPDX-License-Identifier: Apache-2.0
// MiMo-V2-Flash: heads of values narrower than those of keys, values scaled before they are cached,
// partly rotated heads, windowed layers with more KV heads and with attention sinks between full
// ones, a leading dense layer, then experts that are chosen by sigmoids with a bias.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/rope_reader.h"

namespace sluice {
namespace {

constexpr uint64_t kMimoPeriod = 6;  // each so many-th layer is full, as is the first
constexpr double kMimoPart = 0.334;  // of a head that rotates

constexpr KeyDefault kMimoV2Defaults[] = {
    {"num_attention_heads", 64U},
    {"num_key_value_heads", 4U},
    {"head_dim", 192U},
    {"v_head_dim", 128U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 5e6},
    {"partial_rotary_factor", kMimoPart},
    {"sliding_window", 129U},
    {"attention_value_scale", 0.707},
    {"n_routed_experts", 256U},
    {"num_experts_per_tok", 8U},
    {"moe_intermediate_size", 2048U},
    {"norm_topk_prob", true},
    {"first_k_dense_replace", 1U},
};

constexpr TensorName kMimoV2Names[] = {
    {"self_attn.attention_sink_bias", "attn_sinks.weight"},
};

constexpr std::string_view kMimoV2HfKeys[] = {"num_key_value_heads",
                                              "v_head_dim",
                                              "layer_types",
                                              "mlp_layer_types",
                                              "attention_value_scale",
                                              "n_routed_experts",
                                              "num_experts_per_tok",
                                              "moe_intermediate_size",
                                              "norm_topk_prob",
                                              "n_group",
                                              "topk_group",
                                              "routed_scaling_factor"};

bool is_mimo_file(const Checkpoint& checkpoint) {
  return checkpoint.kind() == CheckpointKind::kGguf;
}

// A directory's number of tokens before the own one wins over that with it.
Expected<void> read_mimo_windows(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, kMimoPeriod, config));
  const bool is_listed =
      metadata.has("attention.sliding_layers") || metadata.has("attention.sliding_window_pattern");
  if (!is_listed) config.layers.front().window = 0;
  if (!metadata.has("attention.sliding_window_before")) return {};
  SLUICE_TRY(const int32_t before,
             metadata.get_count("attention.sliding_window_before", uint64_t{1} << 27));
  for (LayerConfig& layer : config.layers) {
    if (layer.window > 0) layer.window = before + 1;
  }
  return {};
}

Expected<void> expect_equal(const Metadata& metadata, const char* key, int32_t usual) {
  SLUICE_TRY(const int32_t found, metadata.get_count_or(key, 1 << 20, usual));
  if (found == usual) return {};
  return metadata.wrong(
      key, std::to_string(found), std::to_string(usual) + ", that of full layers");
}

// GGUF lists the KV heads; a directory has them for full layers, and their double for others.
Expected<void> read_mimo_heads(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  const LayerConfig first = config.layers.front();
  SLUICE_TRY_VOID(expect_equal(metadata, "attention.head_count_swa", first.num_heads));
  SLUICE_TRY_VOID(expect_equal(metadata, "attention.key_length_swa", first.head_dim));
  SLUICE_TRY_VOID(expect_equal(metadata, "attention.value_length_swa", first.value_dim));
  const auto most = static_cast<uint64_t>(first.num_heads);
  SLUICE_TRY(const std::vector<int32_t> listed,
             read_layer_counts(metadata, "attention.head_count_kv", most, config));
  SLUICE_TRY(const int32_t doubled,
             metadata.get_count_or("attention.head_count_kv_swa", most, 2 * first.num_kv_heads));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    if (!listed.empty()) layer.num_kv_heads = listed[i];
    if (listed.empty() && layer.window > 0 && !is_mimo_file(checkpoint)) {
      layer.num_kv_heads = doubled;
    }
    if (layer.num_heads % layer.num_kv_heads == 0) continue;
    return metadata.wrong("attention.head_count",
                          std::to_string(layer.num_heads),
                          "a multiple of the KV heads, " + std::to_string(layer.num_kv_heads));
  }
  return {};
}

Expected<void> read_mimo_rotations(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(use_local_rope(metadata, 10000, config));
  const double whole = config.layers.front().head_dim;
  const double part = config.ropes.front().rotary_dim / whole;
  return read_local_part(metadata, part, config);
}

// GGUF says which layers have experts by what tensors they have.
Expected<void> read_mimo_ffns(const Checkpoint& checkpoint, ModelConfig& config) {
  const bool by_tensors = is_mimo_file(checkpoint) && !checkpoint.is_dummy();
  for (int32_t i = 0; i < config.num_layers && by_tensors; ++i) {
    const bool has_router = checkpoint.has("blk." + std::to_string(i) + ".ffn_gate_inp.weight");
    config.layers[static_cast<size_t>(i)].ffn = has_router ? FfnKind::kExperts : FfnKind::kDense;
  }
  return read_dense_width(checkpoint.metadata(), config);
}

Expected<void> configure_mimo_v2(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(read_mimo_windows(checkpoint, config));
  SLUICE_TRY_VOID(read_mimo_heads(checkpoint, config));
  SLUICE_TRY_VOID(read_mimo_rotations(checkpoint, config));
  SLUICE_TRY_VOID(read_mimo_ffns(checkpoint, config));
  SLUICE_TRY(const double scale, metadata.get_positive_or("attention.value_scale", 1));
  config.value_scale = static_cast<float>(scale);
  config.attention_sinks = true;
  for (int32_t i = 0; i < config.num_layers; ++i) {
    LayerConfig& layer = config.layers[static_cast<size_t>(i)];
    layer.has_sinks = checkpoint.is_dummy()
                          ? layer.window > 0
                          : checkpoint.has("blk." + std::to_string(i) + ".attn_sinks.weight");
  }
  set_dense_module(/*is_windowed=*/true, config);
  config.head.hands_on_normed = true;
  return read_sigmoid_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kMimoV2Spec;
const ModelSpec kMimoV2Spec = {.files = {.gguf = "mimo2",
                                         .model_type = "mimo_v2_flash",
                                         .class_name = "MiMoV2FlashForCausalLM",
                                         .defaults = kMimoV2Defaults,
                                         .is_partly_rotated = true,
                                         .scales_full_layers_only = true,
                                         .has_unlike_layers = true,
                                         .has_value_width = true,
                                         .names = kMimoV2Names},
                               .configure = configure_mimo_v2,
                               .build = build_decoder,
                               .hf_keys = kMimoV2HfKeys};

}  // namespace sluice
