// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/quantize/model_keys.h"
#include "engine/weights/gguf_parse.h"
#include "kernels/rope_scaling.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Returns the shortest number that rounds to this float, instead of its fp64 digits.
double shortest(float value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text) - 1, value).ptr;
  *end = '\0';
  return std::strtod(text, nullptr);
}

// Recovers Llama 3's scaling, stored in GGUF as a tensor of factors, from its largest factor and
// the context from which the others shrink.
std::optional<kernels::Llama3Scaling> llama3_scaling(const kernels::RopeParams& rope) {
  constexpr double kTolerance = 2e-5;
  constexpr int kMaxContextBits = 24;
  kernels::RopeParams plain = rope;
  plain.freq_factors.clear();
  const double factor = std::round(*std::ranges::max_element(rope.freq_factors) * 1e4) / 1e4;
  for (int bits = 4; bits <= kMaxContextBits; ++bits) {
    const kernels::Llama3Scaling scaling = {.factor = factor,
                                            .low_freq_factor = 1,
                                            .high_freq_factor = 4,
                                            .original_context = std::ldexp(1.0, bits)};
    const std::vector<float> factors = kernels::llama3_freq_factors(plain, scaling);
    const bool is_same = std::ranges::equal(factors, rope.freq_factors, [](float a, float b) {
      return std::fabs(double{a} - double{b}) <= kTolerance * std::fabs(double{b});
    });
    if (is_same) return scaling;
  }
  return std::nullopt;
}

// What a family's own keys depend on.
struct Written {
  const ModelConfig& config;
  const Json& common;  // the keys of all families
};

Json layer_types(const Written& w) {
  Json types = Json::array();
  for (const LayerConfig& layer : w.config.layers) {
    types.push_back(layer.window == 0  ? "full_attention"
                    : layer.is_chunked ? "chunked_attention"
                                       : "sliding_attention");
  }
  return types;
}

// Only the first rotation turns anything.
Json rotated_layers(const Written& w) {
  Json rotated = Json::array();
  for (const LayerConfig& layer : w.config.layers) rotated.push_back(layer.rope == 0 ? 1 : 0);
  return rotated;
}

// Shared experts as so many of the others' size.
Json shared_count(const Written& w) { return w.config.moe.shared_hidden / w.config.moe.ffn_hidden; }

Json leading_dense(const Written& w) {
  const auto first = std::ranges::find(w.config.layers, FfnKind::kExperts, &LayerConfig::ffn);
  return first - w.config.layers.begin();
}

// Layers with experts, by their numbers.
Json expert_layers(const Written& w) {
  Json layers = Json::array();
  for (int32_t i = 0; i < w.config.num_layers; ++i) {
    if (w.config.layers[static_cast<size_t>(i)].ffn == FfnKind::kExperts) layers.push_back(i);
  }
  return layers;
}

Json ffn_types(const Written& w) {
  Json types = Json::array();
  for (const LayerConfig& layer : w.config.layers) {
    types.push_back(layer.ffn == FfnKind::kDense ? "dense" : "sparse");
  }
  return types;
}

// The part of a head that makes so many elements, rounded down.
double part_of(double elements, double whole) {
  const double part = elements / whole;
  return std::floor(part * whole) < elements ? std::nextafter(part, 1.0) : part;
}

// How queries of layers without positions grow.
const kernels::QueryScale& tuned_scale(const Written& w) {
  return w.config.ropes.back().query_scale;
}

// The first windowed layer, or the first full one; the first of all if there is none.
const LayerConfig& layer_of(const ModelConfig& config, bool windowed) {
  const auto found = std::ranges::find_if(
      config.layers, [&](const LayerConfig& layer) { return (layer.window > 0) == windowed; });
  return found == config.layers.end() ? config.layers.front() : *found;
}

bool any_layer(const Written& w, bool (*is_it)(const LayerConfig& layer)) {
  return std::ranges::any_of(w.config.layers, is_it);
}

Json num_kv_readers(const Written& w) {
  return std::ranges::count_if(w.config.layers,
                               [](const LayerConfig& layer) { return layer.kv_from >= 0; });
}

int32_t dense_width(const LayerConfig& layer) {
  return layer.ffn == FfnKind::kBoth ? layer.shared_hidden : layer.ffn_hidden;
}

Json cap(float value) { return value > 0 ? Json(shortest(value)) : Json(nullptr); }

const char* activation_name(kernels::GateFunction function) {
  switch (function) {
    case kernels::GateFunction::kGeluTanh:
    case kernels::GateFunction::kGeluTanhAlone:
      return "gelu_pytorch_tanh";
    case kernels::GateFunction::kGelu:
      return "gelu";
    case kernels::GateFunction::kRelu:
      return "relu";
    case kernels::GateFunction::kSquaredRelu:
      return "relu2";
    default:
      return "silu";
  }
}

Json attention_multiplier(const Written& w) {
  const double usual = 1 / std::sqrt(double(w.config.layers.front().head_dim));
  return w.config.attention_scale > 0 ? shortest(w.config.attention_scale) : usual;
}

// A key that only some families have (ModelSpec::hf_keys), and its value; null means none.
struct OwnKey {
  std::string_view name;
  Json (*value)(const Written& written);
};

constexpr OwnKey kOwnKeys[] = {
    {"mlp_bias", [](const Written& w) { return Json(w.config.mlp_bias); }},
    {"hidden_activation", [](const Written& w) { return w.common["hidden_act"]; }},
    {"rope_local_base_freq",
     [](const Written& w) {
       return w.config.ropes.size() > 1 ? Json(shortest(w.config.ropes[1].freq_base)) : Json();
     }},
    {"use_sliding_window",
     [](const Written& w) { return Json(w.common["sliding_window"] != nullptr); }},
    {"layer_types", layer_types},
    {"no_rope_layers", rotated_layers},
    {"num_experts", [](const Written& w) { return Json(w.config.moe.num_experts); }},
    {"num_local_experts", [](const Written& w) { return Json(w.config.moe.num_experts); }},
    {"num_experts_per_tok", [](const Written& w) { return Json(w.config.moe.top_k); }},
    {"moe_intermediate_size", [](const Written& w) { return Json(w.config.moe.ffn_hidden); }},
    {"norm_topk_prob", [](const Written& w) { return Json(w.config.moe.router.normalize); }},
    {"n_routed_experts", [](const Written& w) { return Json(w.config.moe.num_experts); }},
    {"moe_num_experts", [](const Written& w) { return Json(w.config.moe.num_experts); }},
    {"moe_k", [](const Written& w) { return Json(w.config.moe.top_k); }},
    {"n_shared_experts", shared_count},
    {"moe_num_shared_experts", shared_count},
    {"shared_expert_intermediate_size",
     [](const Written& w) { return Json(w.config.moe.shared_hidden); }},
    {"shared_intermediate_size", [](const Written& w) { return Json(w.config.moe.shared_hidden); }},
    {"routed_scaling_factor",
     [](const Written& w) { return Json(shortest(w.config.moe.router.scale)); }},
    {"n_group", [](const Written& w) { return Json(std::max(1, w.config.moe.router.num_groups)); }},
    {"topk_group",
     [](const Written& w) { return Json(std::max(1, w.config.moe.router.groups_kept)); }},
    {"first_k_dense_replace", leading_dense},
    {"moe_layer_start_index", leading_dense},
    {"rms_norm_eps", [](const Written& w) { return Json(shortest(w.config.norm_eps)); }},
    {"router_jitter_noise",
     [](const Written& w) { return Json(shortest(w.config.moe.router.spread / 2)); }},
    {"lm_head_bias", [](const Written& w) { return Json(w.config.output_bias); }},
    {"qk_layernorm", [](const Written& w) { return Json(w.config.qk_norm != QkNorm::kNone); }},
    {"use_parallel_residual", [](const Written& w) { return Json(w.config.parallel_halves); }},
    {"use_qk_norm", [](const Written& w) { return Json(w.config.qk_norm != QkNorm::kNone); }},
    {"rotary_dim", [](const Written& w) { return Json(w.config.ropes.front().rotary_dim); }},
    {"attention_out_bias", [](const Written& w) { return Json(w.config.attention_out_bias); }},
    {"use_bias", [](const Written& w) { return Json(w.config.qkv_bias); }},
    {"use_qkv_bias", [](const Written& w) { return Json(w.config.qkv_bias); }},
    {"decoder_sparse_step", [](const Written&) { return Json(1); }},
    {"mlp_only_layers", [](const Written&) { return Json::array(); }},
    {"query_pre_attn_scalar",
     [](const Written& w) {
       const double scale = w.config.attention_scale;
       return Json(std::lround(1 / (scale * scale)));
     }},
    {"attn_logit_softcapping", [](const Written& w) { return cap(w.config.attention_soft_cap); }},
    {"final_logit_softcapping", [](const Written& w) { return cap(w.config.logit_soft_cap); }},
    {"attention_multiplier", attention_multiplier},
    {"embedding_multiplier",
     [](const Written& w) { return Json(shortest(w.config.embedding_scale)); }},
    {"residual_multiplier",
     [](const Written& w) { return Json(shortest(w.config.residual_scale)); }},
    {"logit_scale", [](const Written& w) { return Json(shortest(w.config.logit_scale)); }},
    {"layer_norm_eps", [](const Written& w) { return Json(shortest(w.config.norm_eps)); }},
    {"layer_norm_epsilon", [](const Written& w) { return Json(shortest(w.config.norm_eps)); }},
    {"n_inner", [](const Written& w) { return Json(w.config.ffn_hidden); }},
    {"activation_function", [](const Written& w) { return w.common["hidden_act"]; }},
    {"multi_query", [](const Written& w) { return Json(w.config.layers.front().num_kv_heads == 1); }},
    {"norm_epsilon", [](const Written& w) { return Json(shortest(w.config.norm_eps)); }},
    {"norm_eps", [](const Written& w) { return Json(shortest(w.config.norm_eps)); }},
    {"scale_emb", [](const Written& w) { return Json(shortest(w.config.embedding_scale)); }},
    {"scale_depth",
     [](const Written& w) {
       return Json(shortest(w.config.residual_scale) * std::sqrt(double(w.config.num_layers)));
     }},
    {"dim_model_base",
     [](const Written& w) { return Json(shortest(w.config.logit_scale) * w.config.hidden); }},
    {"num_shared_experts", shared_count},
    {"moe_topk", [](const Written& w) { return Json(w.config.moe.top_k); }},
    {"num_dense_layers", leading_dense},
    {"route_scale", [](const Written& w) { return Json(shortest(w.config.moe.router.scale)); }},
    {"mup_enabled", [](const Written& w) { return Json(w.config.embedding_scale != 1); }},
    {"logits_scaling", [](const Written& w) { return Json(shortest(1 / w.config.logit_scale)); }},
    {"global_head_dim", [](const Written& w) { return Json(layer_of(w.config, false).head_dim); }},
    {"num_global_key_value_heads",
     [](const Written& w) { return Json(layer_of(w.config, false).num_kv_heads); }},
    {"attention_k_eq_v",
     [](const Written& w) {
       return Json(any_layer(w, [](const LayerConfig& each) { return each.values_are_keys; }));
     }},
    {"num_kv_shared_layers", num_kv_readers},
    {"use_double_wide_mlp",
     [](const Written& w) {
       return Json(dense_width(w.config.layers.back()) > dense_width(w.config.layers.front()));
     }},
    {"intermediate_size_mlp", [](const Written& w) { return Json(w.config.ffn_hidden); }},
    {"moe_layers", expert_layers},
    {"attn_temperature_tuning", [](const Written& w) { return Json(tuned_scale(w).beta != 0); }},
    {"attn_scale",
     [](const Written& w) { return Json(shortest(static_cast<float>(tuned_scale(w).beta))); }},
    {"floor_scale", [](const Written& w) { return Json(tuned_scale(w).context); }},
    {"v_head_dim", [](const Written& w) { return Json(w.config.layers.front().value_width()); }},
    {"num_key_value_heads",
     [](const Written& w) { return Json(layer_of(w.config, false).num_kv_heads); }},
    {"mlp_layer_types", ffn_types},
    {"attention_value_scale",
     [](const Written& w) { return Json(shortest(w.config.value_scale)); }},
    {"enable_moe_block", [](const Written& w) { return Json(w.config.has_experts()); }},
    {"top_k_experts", [](const Written& w) { return Json(w.config.moe.top_k); }},
    {"hidden_size_per_layer_input",
     [](const Written& w) { return Json(w.config.layer_input_width); }},
    {"vocab_size_per_layer_input",
     [](const Written& w) { return Json(w.config.layer_input_vocab); }},
};

class ConfigWriter {
 public:
  ConfigWriter(const Checkpoint& input, const ModelConfig& config, const ModelSpec& spec)
      : checkpoint_(input), input_(input.metadata()), config_(config), spec_(spec) {
    json_["architectures"] = {spec.files.class_name};
    json_["model_type"] = spec.files.model_type;
  }

  Expected<std::string> run() {
    put_shape();
    SLUICE_TRY_VOID(put_rope());
    put_window();
    put_own_keys();
    return json_.dump(2) + "\n";
  }

 private:
  [[nodiscard]] bool has_key(std::string_view key) const {
    return std::ranges::find(spec_.hf_keys, key) != spec_.hf_keys.end();
  }

  void put_shape() {
    json_["vocab_size"] = config_.vocab_size;
    json_["hidden_size"] = config_.hidden;
    // Where experts have no key of their own, this is their size.
    const bool is_expert = config_.moe.num_experts > 0 && !has_key("moe_intermediate_size");
    json_["intermediate_size"] =
        is_expert || config_.ffn_hidden == 0 ? config_.moe.ffn_hidden : config_.ffn_hidden;
    json_["num_hidden_layers"] = config_.num_layers;
    const LayerConfig& layer =
        spec_.files.has_unlike_layers ? layer_of(config_, true) : config_.layers.front();
    json_["num_attention_heads"] = layer.num_heads;
    json_["num_key_value_heads"] = layer.num_kv_heads;
    json_["head_dim"] = layer.head_dim;
    json_["max_position_embeddings"] = input_.get_uint_or("context_length", 0).value_or(0);
    if (!config_.norms_subtract_mean) json_["rms_norm_eps"] = shortest(config_.norm_eps);
    json_["tie_word_embeddings"] = config_.tied_embeddings;
    json_["hidden_act"] = activation_name(config_.gate_function);
    json_["attention_bias"] = config_.qkv_bias;
  }

  void put_own_keys() {
    for (const OwnKey& key : kOwnKeys) {
      if (!has_key(key.name)) continue;
      json_[std::string(key.name)] = key.value({config_, json_});
    }
  }

  // Full layers' whole heads turn by factors of 1, or another, up to a pair.
  void put_rotations() {
    const kernels::RopeParams& rope = config_.ropes.front();
    Json full = {{"rope_type", "default"}, {"rope_theta", shortest(rope.freq_base)}};
    if (!rope.freq_factors.empty()) {
      const auto end = std::ranges::find(rope.freq_factors, kernels::kUnturnedFactor);
      const auto turned = static_cast<double>(end - rope.freq_factors.begin());
      full["rope_type"] = "proportional";
      full["partial_rotary_factor"] = part_of(turned, rope.rotary_dim / 2.0);
      full["factor"] = shortest(turned > 0 ? rope.freq_factors.front() : 1);
    }
    const kernels::RopeParams& other = config_.ropes.back();
    Json local = {{"rope_type", "default"}, {"rope_theta", shortest(other.freq_base)}};
    if (spec_.files.is_partly_rotated) {
      full["partial_rotary_factor"] = part_of(rope.rotary_dim, layer_of(config_, false).head_dim);
      local["partial_rotary_factor"] = part_of(other.rotary_dim, layer_of(config_, true).head_dim);
    }
    json_["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", local}};
  }

  Expected<void> put_rope() {
    if (spec_.files.has_unlike_layers) {
      put_rotations();
      return {};
    }
    const kernels::RopeParams& rope = config_.ropes.front();
    json_["rope_theta"] = shortest(rope.freq_base);
    const int32_t head_dim = config_.layers.front().head_dim;
    if (rope.rotary_dim != head_dim) {
      json_["partial_rotary_factor"] = double(rope.rotary_dim) / head_dim;
    }
    SLUICE_TRY(Json scaling, scaling_of(rope));
    if (!has_key("rope_parameters")) {
      json_["rope_scaling"] = std::move(scaling);
      return {};
    }
    // The class would apply scaling beside the base to windowed layers too.
    const Json plain = {{"rope_type", "default"}, {"rope_theta", json_["rope_theta"]}};
    Json full = plain;
    if (scaling.is_object()) full.update(scaling);
    json_["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", plain}};
    json_.erase("rope_theta");
    return {};
  }

  Expected<Json> scaling_of(const kernels::RopeParams& rope) {
    const bool is_yarn = input_.get_string("rope.scaling.type").value_or("") == "yarn";
    if (config_.long_rope.original_context > 0) return longrope();
    if (is_yarn) return yarn(rope);
    if (rope.freq_scale != 1) {
      const char* key =
          input_.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
      const double factor = input_.get_float(key).value_or(1);
      return Json{{"rope_type", "linear"}, {"factor", shortest(static_cast<float>(factor))}};
    }
    if (rope.freq_factors.empty()) return Json(nullptr);
    const std::optional<kernels::Llama3Scaling> scaling = llama3_scaling(rope);
    if (scaling) {
      return Json{
          {"rope_type", "llama3"},
          {"factor", scaling->factor},
          {"low_freq_factor", scaling->low_freq_factor},
          {"high_freq_factor", scaling->high_freq_factor},
          {"original_max_position_embeddings", static_cast<int64_t>(scaling->original_context)}};
    }
    return make_error(ErrorCode::kUnsupported,
                      checkpoint_.path() +
                          ": tensor \"rope_freqs.weight\": found factors that a directory has no "
                          "name for, expected those of Llama 3's scaling",
                      "to");
  }

  Json yarn(const kernels::RopeParams& rope) const {
    const double context = static_cast<double>(config_.context_len);
    const double original =
        input_.get_float_or("rope.scaling.original_context_length", context).value_or(context);
    const double factor =
        input_.get_float_or("rope.scaling.factor", context / original).value_or(1);
    Json json = {{"rope_type", "yarn"},
                 {"factor", shortest(static_cast<float>(factor))},
                 {"original_max_position_embeddings", static_cast<int64_t>(original)}};
    for (const auto& [key, name] : {std::pair("rope.scaling.yarn_beta_fast", "beta_fast"),
                                    {"rope.scaling.yarn_beta_slow", "beta_slow"}}) {
      if (const Expected<double> beta = input_.get_float(key)) {
        json[name] = shortest(static_cast<float>(*beta));
      }
    }
    if (rope.attention_factor != kernels::yarn_attention_factor(factor, 1)) {
      json["attention_factor"] = shortest(rope.attention_factor);
    }
    if (has_key("truncate")) json["truncate"] = false;
    if (rope.query_scale.beta != 0) {
      json["llama_4_scaling_beta"] = shortest(static_cast<float>(rope.query_scale.beta));
    }
    return json;
  }

  Json longrope() {
    const auto list = [](const std::vector<float>& factors) {
      Json json = Json::array();
      for (const float factor : factors) json.push_back(shortest(factor));
      return json;
    };
    const double context = static_cast<double>(config_.context_len);
    const double original = config_.long_rope.original_context;
    Json json = {{"rope_type", "longrope"},
                 {"short_factor", list(config_.long_rope.short_factors)},
                 {"long_factor", list(config_.long_rope.long_factors)}};
    const float scale = config_.ropes.front().attention_factor;
    if (has_key("long_mscale")) {
      json["short_mscale"] = shortest(scale);
      json["long_mscale"] = shortest(scale);
    } else if (scale != kernels::longrope_attention_factor(context / original, original)) {
      json["attention_factor"] = shortest(scale);
    }
    json_["original_max_position_embeddings"] = config_.long_rope.original_context;
    return json;
  }

  void put_window() {
    const auto windowed = std::ranges::find_if(
        config_.layers, [](const LayerConfig& layer) { return layer.window > 0; });
    const bool has_windows = windowed != config_.layers.end();
    const char* const key =
        has_key("attention_chunk_size") ? "attention_chunk_size" : "sliding_window";
    json_[key] = has_windows ? Json(windowed->window) : Json(nullptr);
  }

  const Checkpoint& checkpoint_;
  const Metadata& input_;
  const ModelConfig& config_;
  const ModelSpec& spec_;
  Json json_;
};

}  // namespace

Expected<std::string> hf_keys(const Checkpoint& input,
                              const ModelConfig& config,
                              const ModelSpec& spec) {
  return ConfigWriter(input, config, spec).run();
}

}  // namespace sluice
