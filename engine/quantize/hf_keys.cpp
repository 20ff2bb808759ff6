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

class ConfigWriter {
 public:
  ConfigWriter(const Checkpoint& input, const ModelConfig& config, const ModelFamily& family)
      : checkpoint_(input), input_(input.metadata()), config_(config), type_(family.model_type) {
    json_["architectures"] = {family.class_name};
    json_["model_type"] = type_;
  }

  Expected<std::string> run() {
    put_shape();
    SLUICE_TRY_VOID(put_rope());
    put_windows();
    put_experts();
    put_scales();
    return json_.dump(2) + "\n";
  }

 private:
  [[nodiscard]] bool is_gemma() const { return type_.starts_with("gemma"); }

  void put_shape() {
    json_["vocab_size"] = config_.vocab_size;
    json_["hidden_size"] = config_.hidden;
    // For Mixtral and gpt-oss this is the size of an expert.
    const bool is_expert = type_ == "mixtral" || type_ == "gpt_oss";
    json_["intermediate_size"] =
        is_expert || config_.ffn_hidden == 0 ? config_.moe.ffn_hidden : config_.ffn_hidden;
    json_["num_hidden_layers"] = config_.num_layers;
    json_["num_attention_heads"] = config_.num_heads;
    json_["num_key_value_heads"] = config_.num_kv_heads;
    json_["head_dim"] = config_.head_dim;
    json_["max_position_embeddings"] = input_.get_uint_or("context_length", 0).value_or(0);
    json_["rms_norm_eps"] = shortest(config_.norm_eps);
    json_["tie_word_embeddings"] = config_.tied_embeddings;
    const bool is_silu = config_.gate_function != kernels::GateFunction::kGeluTanh;
    const char* function = is_silu ? "silu" : "gelu_pytorch_tanh";
    json_["hidden_act"] = function;
    if (is_gemma()) json_["hidden_activation"] = function;
    json_["attention_bias"] = config_.qkv_bias;
    if (type_ == "llama" || type_ == "granite" || type_ == "smollm3") {
      json_["mlp_bias"] = config_.mlp_bias;
    }
  }

  Expected<void> put_rope() {
    const kernels::RopeParams& rope = config_.ropes.front();
    json_["rope_theta"] = shortest(rope.freq_base);
    if (is_gemma() && config_.ropes.size() > 1) {
      json_["rope_local_base_freq"] = shortest(config_.ropes[1].freq_base);
    }
    if (rope.rotary_dim != config_.head_dim) {
      json_["partial_rotary_factor"] = double(rope.rotary_dim) / config_.head_dim;
    }
    SLUICE_TRY(Json scaling, scaling_of(rope));
    if (type_ != "olmo3") {
      json_["rope_scaling"] = std::move(scaling);
      return {};
    }
    // The class of OLMo 3 would apply scaling beside the base to windowed layers too.
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
    if (type_ == "gpt_oss") json["truncate"] = false;
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
    if (scale != kernels::longrope_attention_factor(context / original, original)) {
      json["attention_factor"] = shortest(scale);
    }
    json_["original_max_position_embeddings"] = config_.long_rope.original_context;
    return json;
  }

  void put_windows() {
    const auto windowed = std::ranges::find_if(
        config_.layers, [](const LayerConfig& layer) { return layer.window > 0; });
    const bool has_windows = windowed != config_.layers.end();
    json_["sliding_window"] = has_windows ? Json(windowed->window) : Json(nullptr);
    if (type_.starts_with("qwen") || type_ == "smollm3") json_["use_sliding_window"] = has_windows;
    if (!is_gemma() && type_ != "olmo3" && type_ != "gpt_oss") return;
    for (const LayerConfig& layer : config_.layers) {
      json_["layer_types"].push_back(layer.window > 0 ? "sliding_attention" : "full_attention");
    }
  }

  void put_experts() {
    if (type_ == "smollm3") {
      for (const LayerConfig& layer : config_.layers) {
        json_["no_rope_layers"].push_back(layer.rope < 0 ? 0 : 1);
      }
    }
    const MoeConfig& moe = config_.moe;
    if (moe.num_experts == 0) return;
    json_[type_ == "qwen3_moe" ? "num_experts" : "num_local_experts"] = moe.num_experts;
    json_["num_experts_per_tok"] = moe.top_k;
    if (type_ != "qwen3_moe") return;
    json_["moe_intermediate_size"] = moe.ffn_hidden;
    json_["norm_topk_prob"] = moe.normalize;
    json_["decoder_sparse_step"] = 1;
    json_["mlp_only_layers"] = Json::array();
  }

  void put_scales() {
    if (is_gemma()) {
      const double scale = config_.attention_scale;
      json_["query_pre_attn_scalar"] = std::lround(1 / (scale * scale));
      const auto cap = [](float value) {
        return value > 0 ? Json(shortest(value)) : Json(nullptr);
      };
      json_["attn_logit_softcapping"] = cap(config_.attention_soft_cap);
      json_["final_logit_softcapping"] = cap(config_.logit_soft_cap);
    }
    if (type_ != "granite") return;
    const double usual = 1 / std::sqrt(double(config_.head_dim));
    json_["attention_multiplier"] =
        config_.attention_scale > 0 ? shortest(config_.attention_scale) : usual;
    json_["embedding_multiplier"] = shortest(config_.embedding_scale);
    json_["residual_multiplier"] = shortest(config_.residual_scale);
    json_["logits_scaling"] = shortest(1 / config_.logit_scale);
  }

  const Checkpoint& checkpoint_;
  const Metadata& input_;
  const ModelConfig& config_;
  std::string_view type_;
  Json json_;
};

}  // namespace

Expected<std::string> hf_keys(const Checkpoint& input,
                              const ModelConfig& config,
                              const ModelFamily& family) {
  return ConfigWriter(input, config, family).run();
}

}  // namespace sluice
