// SPDX-License-Identifier: Apache-2.0
// Reads the keys that every architecture has, under GGUF's names.
#include <algorithm>
#include <cmath>
#include <string>

#include "engine/core/log.h"
#include "engine/models/config_reader.h"
#include "engine/models/latent_config.h"
#include "engine/models/rope_reader.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/generation_defaults.h"
#include "engine/weights/gguf_parse.h"
#include "kernels/moe.h"
#include "kernels/sampling.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxWidth = 1 << 20;
constexpr uint64_t kMaxHeads = 1024;

Expected<void> read_epsilon(const Metadata& metadata, ModelConfig& config) {
  constexpr const char* kOfLayerNorm = "attention.layer_norm_epsilon";
  const char* key = "attention.layer_norm_rms_epsilon";
  // Nemotron-H's GGUF files have that of the other norm alone, as have all files of Phi-3.5-MoE.
  const bool has_other = !metadata.has(key) && metadata.has(kOfLayerNorm);
  const bool has_usual = metadata.has(kOfLayerNorm) || !metadata.has(key);
  if ((config.norms_subtract_mean && has_usual) || has_other) key = kOfLayerNorm;
  SLUICE_TRY(const double eps, metadata.get_float(key));
  if (!(eps >= 1e-13 && eps <= 1)) {  // BERT's 1e-12 is a little less as float32
    return metadata.wrong(key, number_text(eps), "1e-13 to 1");
  }
  config.norm_eps = static_cast<float>(eps);
  return {};
}

// The most of any layer, where layers may differ.
Expected<int32_t> read_heads(const Metadata& metadata, bool may_differ) {
  constexpr const char* kKey = "attention.head_count";
  const Expected<std::vector<double>> listed = metadata.get_numbers(kKey);
  if (!may_differ || !listed || listed->empty()) return metadata.get_count(kKey, kMaxHeads);
  const double most = std::ranges::max(*listed);
  if (most >= 1 && most <= kMaxHeads) return static_cast<int32_t>(most);
  return metadata.wrong(kKey, std::to_string(most), "1 to " + std::to_string(kMaxHeads));
}

// Returns a list of numbers of which each layer has one.
Expected<std::vector<double>> read_by_layer(const Metadata& metadata,
                                            const char* key,
                                            const ModelConfig& config) {
  SLUICE_TRY(std::vector<double> listed, metadata.get_numbers(key));
  if (listed.size() == config.layers.size()) return listed;
  return metadata.wrong(key,
                        std::to_string(listed.size()) + " elements",
                        "one for each of " + std::to_string(config.num_layers) + " layers");
}

// Whether a list has a number for each layer, or for each and the modules behind them.
bool is_by_layer(const Metadata& metadata, const std::vector<double>& listed, int32_t num_layers) {
  const uint64_t modules = metadata.get_uint_or("nextn_predict_layers", 0).value_or(0);
  const auto layers = static_cast<size_t>(num_layers);
  return listed.size() == layers || listed.size() == layers + modules;
}

// Some GGUF files state a number for each layer, 0 for those without attention.
Expected<int32_t> read_kv_heads(
    const Metadata& metadata, int32_t num_layers, int32_t num_heads, bool may_differ) {
  constexpr const char* kKey = "attention.head_count_kv";
  const Expected<std::vector<double>> listed = metadata.get_numbers(kKey);
  if (!listed || !is_by_layer(metadata, *listed, num_layers)) {
    return metadata.get_count_or(kKey, kMaxHeads, num_heads);
  }
  const double most = std::ranges::max(*listed);  // there is a layer
  const bool are_equal = std::ranges::all_of(
      *listed, [&](double count) { return may_differ || count == 0 || count == most; });
  if (are_equal && most >= 1 && most <= num_heads) return static_cast<int32_t>(most);
  return metadata.wrong(kKey, "different numbers", "one number, or 0 where there is no attention");
}

// Some state a width for each layer, 0 for those that are mixers alone.
Expected<int32_t> read_ffn_width(const Metadata& metadata, int32_t num_layers) {
  constexpr const char* kKey = "feed_forward_length";
  const Expected<std::vector<double>> listed = metadata.get_numbers(kKey);
  if (!listed || !is_by_layer(metadata, *listed, num_layers) ||
      std::ranges::find(*listed, 0) == listed->end()) {
    return metadata.get_count_or(kKey, kMaxWidth, 0);
  }
  const double most = std::ranges::max(*listed);  // there is a layer
  const bool are_equal = std::ranges::all_of(
      *listed, [most](double width) { return width == 0 || width == most; });
  if (are_equal && most <= kMaxWidth) return static_cast<int32_t>(most);
  return metadata.wrong(kKey, "different numbers", "one number, or 0 where there is no such half");
}

Expected<void> read_shape(const Checkpoint& checkpoint,
                          const ModelSpec& spec,
                          ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  const bool may_differ = spec.files.has_unlike_layers;
  SLUICE_TRY(config.num_layers, metadata.get_count("block_count", 1024));
  SLUICE_TRY(config.hidden, metadata.get_count("embedding_length", kMaxWidth));
  if (!may_differ) {
    SLUICE_TRY(config.ffn_hidden, read_ffn_width(metadata, config.num_layers));
  }
  LayerConfig layer;
  SLUICE_TRY(layer.num_heads, read_heads(metadata, may_differ));
  SLUICE_TRY(layer.num_kv_heads,
             read_kv_heads(metadata, config.num_layers, layer.num_heads, may_differ));
  int32_t value_dim = 0;
  if (spec.files.has_latents) {
    SLUICE_TRY(layer.head_dim, read_latent_head_dim(metadata));
    layer.num_kv_heads = 1;
    value_dim = layer.head_dim;
  } else {
    const int32_t usual = config.hidden / layer.num_heads;
    SLUICE_TRY(layer.head_dim, metadata.get_count_or("attention.key_length", 1024, usual));
    SLUICE_TRY(value_dim, metadata.get_count_or("attention.value_length", 1024, layer.head_dim));
    if (spec.files.has_value_width && checkpoint.kind() != CheckpointKind::kGguf) {
      SLUICE_TRY(value_dim, metadata.get_count_or("attention.value_length_mla", 1024, value_dim));
    }
  }
  SLUICE_TRY(config.context_len, metadata.get_count("context_length", kMaxContext));
  if (!may_differ && layer.num_heads % layer.num_kv_heads != 0) {
    return metadata.wrong("attention.head_count",
                          std::to_string(layer.num_heads),
                          "a multiple of the KV heads, " + std::to_string(layer.num_kv_heads));
  }
  if (spec.files.has_value_width) {
    layer.value_dim = value_dim;
  } else if (layer.head_dim == 0 || value_dim != layer.head_dim) {
    return make_error(ErrorCode::kUnsupported,
                      checkpoint.path() + ": head size: found " + std::to_string(layer.head_dim) +
                          " for keys and " + std::to_string(value_dim) +
                          " for values, expected one size for both");
  }
  config.layers.assign(static_cast<size_t>(config.num_layers), layer);
  SLUICE_TRY_VOID(read_epsilon(metadata, config));
  const CheckpointTensor* embedding = checkpoint.find("token_embd.weight");
  if (checkpoint.is_dummy() || (spec.is_head && embedding == nullptr)) {
    SLUICE_TRY(config.vocab_size, metadata.get_count("vocab_size", kernels::kMaxVocabSize));
    return {};
  }
  if (embedding == nullptr || embedding->num_dims > 2 ||
      embedding->dims[1] > uint64_t{kernels::kMaxVocabSize}) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint.path() + ": tensor token_embd.weight: found " +
                          (embedding == nullptr ? "nothing" : "another shape") +
                          ", expected [vocabulary, hidden]");
  }
  config.vocab_size = static_cast<int32_t>(embedding->dims[1]);
  if (checkpoint.kind() == CheckpointKind::kGguf) return {};
  SLUICE_TRY(const int32_t stated,
             metadata.get_count_or("vocab_size", kernels::kMaxVocabSize, config.vocab_size));
  if (stated != config.vocab_size) {
    return metadata.wrong("vocab_size",
                          std::to_string(stated),
                          std::to_string(config.vocab_size) + ", the rows of the embedding");
  }
  return {};
}

// Reads how GGUF says that experts are scored; directories leave it to the family.
Expected<void> read_score(const Metadata& metadata, kernels::Router& router) {
  SLUICE_TRY(const uint64_t score, metadata.get_uint_or("expert_gating_func", 0));
  if (score > 2) {
    return metadata.wrong(
        "expert_gating_func", std::to_string(score), "1 (softmax) or 2 (sigmoid)");
  }
  if (score == 2) router.score = kernels::RouterScore::kSigmoid;
  return {};
}

Expected<void> read_groups(const Metadata& metadata, MoeConfig& moe) {
  kernels::Router& router = moe.router;
  SLUICE_TRY(const uint64_t groups, metadata.get_uint_or("expert_group_count", 0));
  if (groups <= 1) return {};  // a single group has all of them
  SLUICE_TRY(router.num_groups,
             metadata.get_count("expert_group_count", kernels::kMaxExpertGroups));
  SLUICE_TRY(router.groups_kept, metadata.get_count("expert_group_used_count", groups));
  const int32_t size = moe.num_experts / router.num_groups;
  if (moe.num_experts % router.num_groups != 0 || size < 2) {
    return metadata.wrong(
        "expert_group_count",
        std::to_string(groups),
        "equal groups of 2 or more of " + std::to_string(moe.num_experts) + " experts");
  }
  if (size * router.groups_kept >= moe.top_k) return {};
  return metadata.wrong("expert_group_used_count",
                        std::to_string(router.groups_kept),
                        "groups with " + std::to_string(moe.top_k) + " experts or more");
}

Expected<void> read_shared_experts(const Metadata& metadata, MoeConfig& moe) {
  SLUICE_TRY(const uint64_t count, metadata.get_uint_or("expert_shared_count", 0));
  const uint64_t usual = count * static_cast<uint64_t>(moe.ffn_hidden);
  SLUICE_TRY(const uint64_t width,
             metadata.get_uint_or("expert_shared_feed_forward_length", usual));
  if (count > kMaxWidth || width > kMaxWidth) {
    return metadata.wrong("expert_shared_count",
                          std::to_string(count),
                          "shared experts of at most " + std::to_string(kMaxWidth) + " columns");
  }
  moe.shared_hidden = static_cast<int32_t>(width);
  return {};
}

// Determines which layers have experts: as listed, or those from the first on, each n-th of them.
Expected<void> read_expert_layers(const Metadata& metadata, ModelConfig& config) {
  if (metadata.has("expert_layers")) {
    SLUICE_TRY(const std::vector<double> listed,
               read_by_layer(metadata, "expert_layers", config));
    for (size_t i = 0; i < listed.size(); ++i) {
      if (listed[i] != 0) config.layers[i].ffn = FfnKind::kExperts;
    }
    return {};
  }
  SLUICE_TRY(const uint64_t leading, metadata.get_uint_or("leading_dense_block_count", 0));
  SLUICE_TRY(const int32_t step, metadata.get_count_or("interleave_moe_layer_step", 1024, 1));
  uint64_t end = config.layers.size();
  if (metadata.has("last_moe_layer")) {
    const Expected<uint64_t> last = metadata.get_uint("last_moe_layer");
    const Expected<double> number = metadata.get_float("last_moe_layer");
    if (last) end = *last + 1;
    if (!last && (!number || *number != -1)) return tl::unexpected(last.error());
  }
  for (uint64_t i = leading; i < std::min<uint64_t>(end, config.layers.size()); ++i) {
    if ((i + 1) % static_cast<uint64_t>(step) != 0) continue;
    config.layers[static_cast<size_t>(i)].ffn = FfnKind::kExperts;
  }
  return {};
}

Expected<void> read_experts(const Metadata& metadata, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  SLUICE_TRY(const uint64_t count, metadata.get_uint_or("expert_count", 0));
  if (count == 0) return {};
  SLUICE_TRY(moe.num_experts, metadata.get_count("expert_count", kernels::kMaxExperts));
  SLUICE_TRY(moe.top_k, metadata.get_count("expert_used_count", count));
  SLUICE_TRY(moe.ffn_hidden,
             metadata.get_count_or("expert_feed_forward_length", kMaxWidth, config.ffn_hidden));
  if (moe.ffn_hidden == 0)
    return metadata.wrong("expert_feed_forward_length", "nothing", "a width");
  SLUICE_TRY_VOID(read_score(metadata, moe.router));
  SLUICE_TRY(const double scale, metadata.get_positive_or("expert_weights_scale", 1));
  moe.router.scale = static_cast<float>(scale);
  SLUICE_TRY_VOID(read_groups(metadata, moe));
  SLUICE_TRY_VOID(read_shared_experts(metadata, moe));
  return read_expert_layers(metadata, config);
}

// Reads the function of a half without gates.
Expected<void> read_function(const Metadata& metadata, const FileSpec& files, ModelConfig& config) {
  using Function = kernels::GateFunction;
  constexpr std::pair<std::string_view, Function> kFunctions[] = {
      {"relu2", Function::kSquaredRelu},
      {"relu", Function::kRelu},
      {"xielu", Function::kXielu},
      {"gelu", Function::kGelu},
      {"gelu_new", Function::kGeluTanhAlone},
      {"gelu_fast", Function::kGeluTanhAlone},
      {"gelu_pytorch_tanh", Function::kGeluTanhAlone},
  };
  config.fused_gate_up = false;
  std::string name(files.function);
  if (metadata.has("hidden_act")) {
    SLUICE_TRY(name, metadata.get_string("hidden_act"));
  }
  const auto* const found = std::ranges::find(
      kFunctions, std::string_view(name), &std::pair<std::string_view, Function>::first);
  const bool has_numbers = name != "xielu" || files.function == name;
  if (found == std::end(kFunctions) || !has_numbers) {
    return metadata.wrong("hidden_act", "\"" + name + "\"", "relu2, relu, gelu or gelu_new");
  }
  config.gate_function = found->second;
  return {};
}

Expected<void> read_gate_function(const Metadata& metadata,
                                  const FileSpec& files,
                                  ModelConfig& config) {
  if (!files.is_gated) return read_function(metadata, files, config);
  if (!metadata.has("hidden_act")) return {};
  SLUICE_TRY(const std::string name, metadata.get_string("hidden_act"));
  if (name == "silu" || name == "swish" || name == "swiglu") {
    config.gate_function = kernels::GateFunction::kSilu;
  } else if (name == "gelu_pytorch_tanh" || (name == "gelu" && files.gelu_is_tanh)) {
    config.gate_function = kernels::GateFunction::kGeluTanh;
  } else if (files.is_encoder && name == "gelu") {
    config.gate_function = kernels::GateFunction::kGeluErf;
  } else {
    return metadata.wrong("hidden_act", "\"" + name + "\"", "silu or gelu_pytorch_tanh");
  }
  return {};
}

// Whether tokens see those behind them.
Expected<bool> reads_behind(const Metadata& metadata, const FileSpec& files) {
  SLUICE_TRY(const bool is_causal,
             metadata.get_bool_or("attention.causal", !files.is_encoder));
  if (files.is_encoder && is_causal) return metadata.wrong("attention.causal", "true", "false");
  if (files.is_encoder) return true;
  if (!files.may_be_encoder) return false;
  SLUICE_TRY(const bool sees_behind, metadata.get_bool_or("attention.sees_behind", false));
  return sees_behind || !is_causal;
}

// Whether config.json names a class without an output layer, as "MistralModel", which is layers
// alone, or "MistralForSequenceClassification".
bool lacks_output_layer(const Metadata& metadata) {
  const Expected<std::string> names = metadata.get_string("class_names");
  return names &&
         (names->ends_with("Model\"]") || names->ends_with("ForSequenceClassification\"]"));
}

// Determines which tensors exist: from the checkpoint, or from its configuration if there is
// nothing else. Promised tensors must exist; a head may use its target's output layer.
Expected<void> read_tensor_kinds(const Checkpoint& checkpoint, bool is_head, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  if (checkpoint.is_dummy()) {
    SLUICE_TRY(config.tied_embeddings, metadata.get_bool_or("tied_embeddings", false));
    SLUICE_TRY(config.qkv_bias, metadata.get_bool_or("attention_bias", false));
    config.attention_out_bias = config.qkv_bias;
    SLUICE_TRY(config.mlp_bias, metadata.get_bool_or("mlp_bias", false));
    return {};
  }
  config.tied_embeddings = !checkpoint.has("output.weight");
  SLUICE_TRY(const bool may_tie, metadata.get_bool_or("tied_embeddings", true));
  if (config.tied_embeddings && !may_tie && !is_head && !config.is_encoder) {
    config.lacks_output = lacks_output_layer(metadata);
    if (!config.lacks_output) {
      return metadata.wrong("tied_embeddings", "false and no tensor lm_head.weight", "either");
    }
  }
  SLUICE_TRY(const bool qkv_bias, metadata.get_bool_or("attention_bias", false));
  SLUICE_TRY(const bool mlp_bias, metadata.get_bool_or("mlp_bias", false));
  // The first layer may have no attention, or nothing else.
  const auto any_has = [&](const char* name) {
    for (int32_t i = 0; i < config.num_layers; ++i) {
      if (checkpoint.has("blk." + std::to_string(i) + name)) return true;
    }
    return false;
  };
  config.qkv_bias = qkv_bias || any_has(".attn_q.bias") || any_has(".attn_qkv.bias");
  config.attention_out_bias = any_has(".attn_output.bias");
  config.mlp_bias = mlp_bias || any_has(".ffn_down.bias");
  config.output_bias = !config.tied_embeddings && checkpoint.has("output.bias");
  config.fused_qkv = checkpoint.has("blk.0.attn_qkv.weight");
  const bool is_dense = config.layers.front().ffn == FfnKind::kDense;
  config.fused_gate_up = is_dense && !checkpoint.has("blk.0.ffn_gate.weight");
  return {};
}

// A value without effect: a negative YaRN share means the scaling type's, 0 except for YaRN.
bool has_no_effect(const Metadata& metadata, std::string_view key, double value) {
  if (key != "rope.scaling.yarn_ext_factor") return false;
  const Expected<std::string> type = metadata.get_string("rope.scaling.type");
  return value < 0 || (value == 0 && (!type || *type != "yarn"));
}

// Rejects GGUF keys that would change the computation. Other keys that no spec reads have no effect
// in the program that defines them either.
Expected<void> check_fixed_keys(const Checkpoint& checkpoint, const FileSpec& files) {
  const Metadata& metadata = checkpoint.metadata();
  constexpr const char* kTemperature = "attention.temperature_scale";
  constexpr const char* kParallel = "use_parallel_residual";
  constexpr const char* kLimit = "attention.clamp_kqv";
  constexpr std::pair<const char*, double> kFixed[] = {
      {"attention.causal", 1},
      {kLimit, 0},
      {"attention.max_alibi_bias", 0},
      {kTemperature, 0},
      {"rope.scaling.yarn_ext_factor", 1},
      {kParallel, 0},
  };
  for (const auto& [key, usual] : kFixed) {
    const bool is_read =
        (files.scales_queries && key == std::string_view(kTemperature)) ||
        (files.may_be_parallel && key == std::string_view(kParallel)) ||
        (files.limits_qkv && key == std::string_view(kLimit)) ||
        ((files.is_encoder || files.may_be_encoder) && key == std::string_view("attention.causal"));
    if (is_read || !metadata.has(key)) continue;
    const Expected<bool> flag = metadata.get_bool_or(key, false);
    const Expected<double> number = metadata.get_float(key);
    const bool is_usual = flag ? *flag == (usual != 0) : number.has_value() && *number == usual;
    if (is_usual) continue;
    if (number && has_no_effect(metadata, key, *number)) {
      warn_of_file(checkpoint.path(), key, std::to_string(*number), "not given");
      continue;
    }
    return metadata.wrong(key,
                          flag     ? (*flag ? "true" : "false")
                          : number ? std::to_string(*number)
                                   : "no number",
                          flag ? (usual != 0 ? "true" : "false") : std::to_string(usual));
  }
  return {};
}

}  // namespace

Expected<std::vector<int32_t>> read_layer_counts(const Metadata& metadata,
                                                 const char* key,
                                                 uint64_t most,
                                                 const ModelConfig& config) {
  std::vector<int32_t> counts;
  if (!metadata.get_numbers(key)) return counts;
  SLUICE_TRY(const std::vector<double> listed, read_by_layer(metadata, key, config));
  for (const double number : listed) {
    if (!(number >= 1 && number <= static_cast<double>(most) && number == std::floor(number))) {
      return metadata.wrong(key, std::to_string(number), "1 to " + std::to_string(most));
    }
    counts.push_back(static_cast<int32_t>(number));
  }
  return counts;
}

Expected<void> read_dense_width(const Metadata& metadata, ModelConfig& config) {
  constexpr const char* kKey = "feed_forward_length";
  SLUICE_TRY(const std::vector<int32_t> listed,
             read_layer_counts(metadata, kKey, kMaxWidth, config));
  const auto dense = std::ranges::find(config.layers, FfnKind::kDense, &LayerConfig::ffn);
  if (listed.empty()) {
    SLUICE_TRY(config.ffn_hidden, metadata.get_count(kKey, kMaxWidth));
  } else if (dense != config.layers.end()) {
    config.ffn_hidden = listed[static_cast<size_t>(dense - config.layers.begin())];
  }
  return {};
}

Expected<double> read_soft_cap(const Metadata& metadata, const char* key, double absent) {
  if (!metadata.has(key)) return absent;
  return metadata.get_positive_or(key, absent);
}

Expected<float> read_attention_scale(const Metadata& metadata,
                                     int32_t layers_of_largest,
                                     const ModelConfig& config) {
  const bool is_largest = config.num_layers == layers_of_largest;
  const LayerConfig& layer = config.layers.front();
  const double usual = is_largest ? config.hidden / layer.num_heads : layer.head_dim;
  SLUICE_TRY(const double width, metadata.get_positive_or("query_pre_attn_scalar", usual));
  return 1.0F / std::sqrt(static_cast<float>(width));
}

Expected<void> check_experts(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (config.has_experts()) return {};
  return checkpoint.metadata().wrong("expert_count", "no experts", "1 or more");
}

Expected<void> expect_expert_score(const Metadata& metadata, std::string_view score) {
  if (!metadata.has("expert_score")) return {};
  SLUICE_TRY(const std::string stated, metadata.get_string("expert_score"));
  // The files of dots.llm1 have the rule of choice there, which goes with sigmoids.
  if (stated == score || (score == "sigmoid" && stated == "noaux_tc")) return {};
  return metadata.wrong("expert_score", in_quotes(stated), std::string(score));
}

Expected<void> read_sigmoid_experts(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(expect_expert_score(checkpoint.metadata(), "sigmoid"));
  config.moe.choice_bias = true;
  config.moe.router.score = kernels::RouterScore::kSigmoid;
  config.moe.router.epsilon = 1e-20F;
  SLUICE_TRY(config.moe.router.normalize,
             checkpoint.metadata().get_bool_or("expert_weights_norm", true));
  return check_experts(checkpoint, config);
}

Expected<int32_t> read_window(const Metadata& metadata) {
  SLUICE_TRY(const uint64_t window, metadata.get_uint_or("attention.sliding_window", 0));
  if (window > kMaxContext) {
    return metadata.wrong("attention.sliding_window",
                          std::to_string(window),
                          "at most " + std::to_string(kMaxContext));
  }
  return static_cast<int32_t>(window);
}

Expected<void> read_window_pattern(const Checkpoint& checkpoint,
                                   int32_t usual_period,
                                   ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const int32_t window, read_window(metadata));
  const char* listed = metadata.has("attention.sliding_layers")
                           ? "attention.sliding_layers"
                           : "attention.sliding_window_pattern";
  std::vector<double> windowed;
  int32_t period = usual_period;
  if (metadata.get_numbers(listed)) {
    SLUICE_TRY(windowed, read_by_layer(metadata, listed, config));
  } else {
    SLUICE_TRY(period, metadata.get_count_or(listed, 1024, usual_period));
  }
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool slides = windowed.empty() ? (i + 1) % period != 0 : windowed[at] != 0;
    if (slides) config.layers[at].window = window;
  }
  return {};
}

void set_dense_module(bool is_windowed, ModelConfig& config) {
  const auto last = std::find_if(
      config.layers.rbegin(), config.layers.rend(), [&](const LayerConfig& layer) {
        return (layer.window > 0) == is_windowed;
      });
  LayerConfig layer = last == config.layers.rend() ? config.layers.back() : *last;
  layer.ffn = FfnKind::kDense;
  layer.ffn_hidden = config.ffn_hidden;
  layer.shared_hidden = 0;
  layer.expert_limit = 0;
  layer.dense_limit = 0;
  config.module_layer = layer;
}

Expected<void> read_optional_window(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY(const bool windowed, checkpoint.metadata().get_bool_or("use_sliding_window", false));
  if (!windowed) return {};
  if (!checkpoint.metadata().has("attention.sliding_layers")) {
    return checkpoint.metadata().wrong(
        "use_sliding_window", "true without layer_types", "layer_types or max_window_layers");
  }
  return read_window_pattern(checkpoint, 1, config);
}

Expected<ModelConfig> read_model_config(const ModelSpec& spec, const Checkpoint& checkpoint) {
  ModelConfig config;
  config.architecture = checkpoint.architecture();
  if (checkpoint.kind() != CheckpointKind::kGguf) config.norm_offset = spec.files.norm_offset;
  config.norms_subtract_mean = spec.files.subtracts_mean;
  SLUICE_TRY(config.is_encoder, reads_behind(checkpoint.metadata(), spec.files));
  SLUICE_TRY_VOID(check_fixed_keys(checkpoint, spec.files));
  SLUICE_TRY_VOID(read_shape(checkpoint, spec, config));
  SLUICE_TRY_VOID(read_rope(checkpoint, spec, config));
  SLUICE_TRY_VOID(read_experts(checkpoint.metadata(), config));
  SLUICE_TRY_VOID(read_tensor_kinds(checkpoint, spec.is_head, config));
  SLUICE_TRY_VOID(read_gate_function(checkpoint.metadata(), spec.files, config));
  SLUICE_TRY_VOID(spec.configure(checkpoint, config));
  if (config.has(FfnKind::kDense) && config.ffn_hidden == 0) {
    return checkpoint.metadata().wrong("feed_forward_length", "nothing", "a whole number");
  }
  for (LayerConfig& layer : config.layers) {
    if (layer.ffn_hidden > 0 || layer.ffn == FfnKind::kNone) continue;  // the family has set it
    const bool is_dense = layer.ffn == FfnKind::kDense;
    layer.ffn_hidden = is_dense ? config.ffn_hidden : config.moe.ffn_hidden;
    layer.shared_hidden = is_dense ? 0 : config.moe.shared_hidden;
  }
  if (!spec.is_head) config.suppressed = read_suppressed_tokens(checkpoint, config.vocab_size);
  return config;
}

void take_biases(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_bias = true;
  config.mlp_bias = config.mlp_bias || checkpoint.is_dummy();
}

void take_usual_width(ModelConfig& config) {
  if (config.ffn_hidden == 0) config.ffn_hidden = 4 * config.hidden;
}

void take_positions(int32_t first, ModelConfig& config) {
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  config.first_position = first;
  config.num_positions = config.context_len + first;
}

}  // namespace sluice
