// SPDX-License-Identifier: Apache-2.0
// Gemma 4 text: norms around each half and of each head of q, k and v, unscaled attention; five
// windowed layers for each full one, whose heads are wider, fewer and in part rotated, and whose
// values may be its keys. In small models the last layers read the K and V of earlier ones and
// every layer adds an input of its own; in one, experts are beside each dense half.
#include <algorithm>
#include <cmath>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/rope_reader.h"
#include "kernels/rope_scaling.h"

namespace sluice {
namespace {

constexpr int32_t kMaxHeadDim = 1024;
constexpr uint64_t kMaxWidth = 1 << 20;

constexpr KeyDefault kDefaults[] = {
    {"num_attention_heads", 8U},
    {"num_key_value_heads", 4U},
    {"head_dim", 256U},
    {"global_head_dim", 512U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-6},
    {"sliding_window", 512U},
    {"hidden_size_per_layer_input", 256U},
    {"vocab_size_per_layer_input", 262144U},
};

constexpr KeyDefault kUnifiedDefaults[] = {
    {"num_attention_heads", 8U},
    {"num_key_value_heads", 4U},
    {"head_dim", 256U},
    {"global_head_dim", 512U},
    {"max_position_embeddings", 262144U},
    {"rms_norm_eps", 1e-6},
    {"sliding_window", 1024U},
};

constexpr KeyDefault kRopeDefaults[] = {
    {"rope_type", "proportional"},
    {"partial_rotary_factor", 0.25},
    {"rope_theta", 1e6},
};

constexpr TensorName kNames[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
    {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
    {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"router.proj", "ffn_gate_inp"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    // Writers of quantized files have the experts apart, some of them with another name in front.
    {"experts.#.gate_proj", "ffn_gate_exps"},
    {"experts.#.up_proj", "ffn_up_exps"},
    {"experts.#.down_proj", "ffn_down_exps"},
    {"moe.experts.#.gate_proj", "ffn_gate_exps"},
    {"moe.experts.#.up_proj", "ffn_up_exps"},
    {"moe.experts.#.down_proj", "ffn_down_exps"},
    {"per_layer_input_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    {"post_per_layer_input_norm", "post_norm"},
    {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
};

constexpr std::string_view kHfKeys[] = {"hidden_activation",
                                        "layer_types",
                                        "final_logit_softcapping",
                                        "global_head_dim",
                                        "num_global_key_value_heads",
                                        "attention_k_eq_v",
                                        "num_kv_shared_layers",
                                        "use_double_wide_mlp",
                                        "enable_moe_block",
                                        "num_experts",
                                        "top_k_experts",
                                        "moe_intermediate_size",
                                        "hidden_size_per_layer_input",
                                        "vocab_size_per_layer_input"};

bool is_gguf(const Checkpoint& checkpoint) { return checkpoint.kind() == CheckpointKind::kGguf; }

// GGUF states the full layers' heads, and the windowed ones' beside them; directories the other way
// round, unless transformers has written the full layers' by their numbers.
Expected<void> read_heads(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  const bool gguf = is_gguf(checkpoint);
  const int32_t usual = config.layers.front().head_dim;
  const char* const other_key = gguf ? "attention.key_length_swa" : "attention.full_key_length";
  SLUICE_TRY(const int32_t other, metadata.get_count_or(other_key, kMaxHeadDim, usual));
  SLUICE_TRY(const int32_t other_values,
             metadata.get_count_or("attention.value_length_swa", kMaxHeadDim, other));
  if (other_values != other) {
    return metadata.wrong("attention.value_length_swa",
                          std::to_string(other_values),
                          std::to_string(other) + ", that of keys");
  }
  SLUICE_TRY(const bool values_are_keys, metadata.get_bool_or("attention.values_are_keys", false));
  int32_t full_kv_heads = config.layers.front().num_kv_heads;
  if (values_are_keys) {
    SLUICE_TRY(
        full_kv_heads,
        metadata.get_count_or(
            "attention.full_head_count_kv", static_cast<uint64_t>(kMaxHeadDim), full_kv_heads));
  }
  SLUICE_TRY(const std::vector<int32_t> widths,
             read_layer_counts(metadata, "attention.layers_key_length", kMaxHeadDim, config));
  SLUICE_TRY(const std::vector<int32_t> kv_heads,
             read_layer_counts(metadata,
                               gguf ? "attention.head_count_kv" : "attention.layers_head_count_kv",
                               static_cast<uint64_t>(config.layers.front().num_heads),
                               config));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    const bool is_full = layer.window == 0;
    if (is_full != gguf) layer.head_dim = other;
    if (!widths.empty()) layer.head_dim = widths[i];
    if (is_full && !gguf) layer.num_kv_heads = full_kv_heads;
    if (!kv_heads.empty()) layer.num_kv_heads = kv_heads[i];
    if (layer.num_heads % layer.num_kv_heads == 0 && layer.head_dim % 2 == 0) continue;
    return metadata.wrong(
        "attention.head_count",
        std::to_string(layer.num_heads) + " heads of " + std::to_string(layer.head_dim),
        "heads of an even size, a multiple of the KV heads, " + std::to_string(layer.num_kv_heads));
  }
  return {};
}

// The last layers read the K and V of the last layer of their kind before them.
Expected<void> share_kv(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const uint64_t shared, metadata.get_uint_or("attention.shared_kv_layers", 0));
  const auto wrong = [&](const std::string& expected) {
    return metadata.wrong("attention.shared_kv_layers", std::to_string(shared), expected);
  };
  if (shared >= config.layers.size()) {
    return wrong("less than " + std::to_string(config.num_layers) + " layers");
  }
  const auto first = static_cast<int32_t>(config.layers.size() - shared);
  for (int32_t i = first; i < config.num_layers; ++i) {
    LayerConfig& layer = config.layers[static_cast<size_t>(i)];
    for (int32_t from = first - 1; from >= 0 && layer.kv_from < 0; --from) {
      const LayerConfig& other = config.layers[static_cast<size_t>(from)];
      const bool is_alike = other.window == layer.window && other.head_dim == layer.head_dim &&
                            other.num_kv_heads == layer.num_kv_heads;
      if (is_alike) layer.kv_from = from;
    }
    if (layer.kv_from < 0) return wrong("a layer of each kind with K and V of its own");
  }
  SLUICE_TRY(const bool all_full, metadata.get_bool_or("attention.values_are_keys", false));
  for (int32_t i = 0; i < first; ++i) {
    LayerConfig& layer = config.layers[static_cast<size_t>(i)];
    layer.values_are_keys = is_gguf(checkpoint)
                                ? !checkpoint.has("blk." + std::to_string(i) + ".attn_v.weight")
                                : all_full && layer.window == 0;
  }
  return {};
}

// Full layers rotate whole heads by frequencies whose exponents are over all of a head; those after
// the first pairs are 0.
Expected<void> read_rotations(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(use_local_rope(metadata, 10000, config));
  for (const LayerConfig& layer : config.layers) {
    config.ropes[static_cast<size_t>(layer.rope)].rotary_dim = layer.head_dim;
  }
  kernels::RopeParams& full = config.ropes[0];
  if (is_gguf(checkpoint)) {  // has the frequencies as a tensor
    SLUICE_TRY(config.ropes[1].rotary_dim,
               metadata.get_count_or("rope.dimension_count_swa",
                                     static_cast<uint64_t>(config.ropes[1].rotary_dim),
                                     config.ropes[1].rotary_dim));
    return {};
  }
  SLUICE_TRY(const double base, metadata.get_positive_or("rope.freq_base", 1e6));
  full.freq_base = static_cast<float>(base);
  const Expected<std::string> type = metadata.get_string("rope.scaling.type");
  SLUICE_TRY(const double part, metadata.get_positive_or("partial_rotary_factor", 1));
  SLUICE_TRY(const double factor, metadata.get_positive_or("rope.scaling.factor", 1));
  if (part > 1) return metadata.wrong("partial_rotary_factor", std::to_string(part), "at most 1");
  if (!type || *type != "proportional") {
    if (part == 1) return {};
    return metadata.wrong("partial_rotary_factor", std::to_string(part), "rope_type proportional");
  }
  const auto pairs = static_cast<size_t>(full.rotary_dim / 2);
  const auto turned =
      static_cast<size_t>(std::floor(part * static_cast<double>(full.rotary_dim) / 2));
  full.freq_factors.assign(pairs, kernels::kUnturnedFactor);
  std::fill_n(full.freq_factors.begin(), turned, static_cast<float>(factor));
  return {};
}

// GGUF lists the widths by layer where they differ.
Expected<void> read_widths(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const std::vector<int32_t> listed,
             read_layer_counts(metadata, "feed_forward_length", kMaxWidth, config));
  if (listed.empty()) {
    SLUICE_TRY(config.ffn_hidden, metadata.get_count("feed_forward_length", kMaxWidth));
  } else {
    config.ffn_hidden = listed.front();
  }
  SLUICE_TRY(const bool doubles, metadata.get_bool_or("ffn_doubles_width", false));
  SLUICE_TRY(const bool has_experts,
             metadata.get_bool_or("has_experts", is_gguf(checkpoint) && config.has_experts()));
  if (!has_experts) config.moe = {};
  config.moe.expert_scales =
      has_experts && (checkpoint.is_dummy() || checkpoint.has("blk.0.ffn_down_exps.scale"));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    const int32_t factor = doubles && layer.kv_from >= 0 ? 2 : 1;
    const int32_t width = listed.empty() ? factor * config.ffn_hidden : listed[i];
    layer.ffn = has_experts ? FfnKind::kBoth : FfnKind::kDense;
    layer.ffn_hidden = has_experts ? config.moe.ffn_hidden : width;
    layer.shared_hidden = has_experts ? width : 0;
  }
  if (!has_experts || config.moe.num_experts > 0) return {};
  return metadata.wrong("expert_count", "no experts", "1 or more");
}

Expected<void> read_layer_inputs(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  constexpr const char* kKey = "embedding_length_per_layer_input";
  SLUICE_TRY(const uint64_t width, metadata.get_uint_or(kKey, 0));
  config.layer_scales = checkpoint.is_dummy() || checkpoint.has("blk.0.layer_output_scale.weight");
  if (width == 0) return {};
  SLUICE_TRY(config.layer_input_width, metadata.get_count(kKey, kMaxWidth / config.layers.size()));
  SLUICE_TRY(config.layer_input_vocab,
             metadata.get_count_or(
                 "vocab_size_per_layer_input", kernels::kMaxVocabSize, config.vocab_size));
  if (const CheckpointTensor* table = checkpoint.find("per_layer_token_embd.weight");
      table != nullptr && is_gguf(checkpoint)) {
    config.layer_input_vocab =
        static_cast<int32_t>(std::min<uint64_t>(table->dims[1], kernels::kMaxVocabSize));
  }
  if (config.layer_input_vocab >= config.vocab_size) return {};
  return metadata.wrong("vocab_size_per_layer_input",
                        std::to_string(config.layer_input_vocab),
                        "at least the vocabulary, " + std::to_string(config.vocab_size));
}

Expected<void> configure_gemma4(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.norm_placement = NormPlacement::kAround;
  config.qk_norm = QkNorm::kHead;
  config.value_norm = true;
  if (!metadata.has("hidden_act")) config.gate_function = kernels::GateFunction::kGeluTanh;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  config.attention_scale = 1;
  SLUICE_TRY(const double cap, read_soft_cap(metadata, "final_logit_softcapping", 0));
  config.logit_soft_cap = static_cast<float>(cap);
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, 6, config));
  // transformers takes the last layer of a directory as a full one, whatever it says.
  if (!is_gguf(checkpoint)) config.layers.back().window = 0;
  SLUICE_TRY_VOID(read_heads(checkpoint, config));
  SLUICE_TRY_VOID(share_kv(checkpoint, config));
  SLUICE_TRY_VOID(read_rotations(checkpoint, config));
  SLUICE_TRY_VOID(read_widths(checkpoint, config));
  return read_layer_inputs(checkpoint, config);
}

}  // namespace

extern const ModelSpec kGemma4Spec;
const ModelSpec kGemma4Spec = {.files = {.gguf = "gemma4",
                                         .model_type = "gemma4_text",
                                         .class_name = "Gemma4ForCausalLM",
                                         .defaults = kDefaults,
                                         .rope_defaults = kRopeDefaults,
                                         .ties_embedding = true,
                                         .scales_full_layers_only = true,
                                         .has_unlike_layers = true,
                                         .names = kNames,
                                         .experts = ExpertTensors::kStackedAlone},
                               .configure = configure_gemma4,
                               .build = build_decoder,
                               .hf_keys = kHfKeys};

// The text model of the 12B.
extern const ModelSpec kGemma4UnifiedSpec;
const ModelSpec kGemma4UnifiedSpec = {.files = {.gguf = "gemma4",
                                                .reads_gguf = false,
                                                .model_type = "gemma4_unified_text",
                                                .class_name = "Gemma4UnifiedForCausalLM",
                                                .defaults = kUnifiedDefaults,
                                                .rope_defaults = kRopeDefaults,
                                                .ties_embedding = true,
                                                .scales_full_layers_only = true,
                                                .has_unlike_layers = true,
                                                .names = kNames},
                                      .configure = configure_gemma4,
                                      .build = build_decoder};

}  // namespace sluice
