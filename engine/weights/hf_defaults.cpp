// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/hf_defaults.h"

#include <nlohmann/json.hpp>
#include <string_view>

namespace sluice {
namespace {

using Json = nlohmann::json;

struct Default {
  std::string_view model_type;
  const char* spelling;  // in config.json
  const char* key;
  double value;
  bool whole = true;
};

constexpr Default kDefaults[] = {
    {"llama", "max_position_embeddings", "context_length", 2048},
    {"llama", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, false},
    {"mistral", "num_key_value_heads", "attention.head_count_kv", 8},
    {"mistral", "max_position_embeddings", "context_length", 131072},
    {"mistral", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, false},
    {"mistral", "sliding_window", "attention.sliding_window", 4096},
    {"mixtral", "num_key_value_heads", "attention.head_count_kv", 8},
    {"mixtral", "max_position_embeddings", "context_length", 131072},
    {"mixtral", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5, false},
    {"mixtral", "num_local_experts", "expert_count", 8},
    {"mixtral", "num_experts_per_tok", "expert_used_count", 2},
    {"smollm3", "num_attention_heads", "attention.head_count", 16},
    {"smollm3", "num_key_value_heads", "attention.head_count_kv", 4},
    {"smollm3", "max_position_embeddings", "context_length", 32768},
    {"smollm3", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, false},
    {"smollm3", "rope_theta", "rope.freq_base", 2e6},
    {"qwen2", "num_key_value_heads", "attention.head_count_kv", 32},
    {"qwen2", "max_position_embeddings", "context_length", 32768},
    {"qwen2", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, false},
    {"qwen2", "sliding_window", "attention.sliding_window", 4096},
    {"qwen3", "num_key_value_heads", "attention.head_count_kv", 32},
    {"qwen3", "head_dim", "attention.key_length", 128},
    {"qwen3", "max_position_embeddings", "context_length", 32768},
    {"qwen3", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, false},
    {"qwen3", "sliding_window", "attention.sliding_window", 4096},
    {"qwen3_moe", "num_key_value_heads", "attention.head_count_kv", 4},
    {"qwen3_moe", "max_position_embeddings", "context_length", 32768},
    {"qwen3_moe", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, false},
    {"qwen3_moe", "sliding_window", "attention.sliding_window", 4096},
    {"qwen3_moe", "num_experts", "expert_count", 128},
    {"qwen3_moe", "num_experts_per_tok", "expert_used_count", 8},
    {"qwen3_moe", "moe_intermediate_size", "expert_feed_forward_length", 768},
    {"gemma2", "num_attention_heads", "attention.head_count", 8},
    {"gemma2", "num_key_value_heads", "attention.head_count_kv", 4},
    {"gemma2", "head_dim", "attention.key_length", 256},
    {"gemma2", "max_position_embeddings", "context_length", 8192},
    {"gemma2", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, false},
    {"gemma2", "sliding_window", "attention.sliding_window", 4096},
    {"gemma2", "query_pre_attn_scalar", "query_pre_attn_scalar", 256},
    {"gemma2", "attn_logit_softcapping", "attn_logit_softcapping", 50},
    {"gemma2", "final_logit_softcapping", "final_logit_softcapping", 30},
    {"gemma3_text", "num_attention_heads", "attention.head_count", 8},
    {"gemma3_text", "num_key_value_heads", "attention.head_count_kv", 4},
    {"gemma3_text", "head_dim", "attention.key_length", 256},
    {"gemma3_text", "max_position_embeddings", "context_length", 131072},
    {"gemma3_text", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, false},
    {"gemma3_text", "sliding_window", "attention.sliding_window", 4096},
    {"gemma3_text", "query_pre_attn_scalar", "query_pre_attn_scalar", 256},
    {"gemma3_text", "rope_theta", "rope.freq_base", 1e6},
    {"phi3", "max_position_embeddings", "context_length", 4096},
    {"phi3", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5, false},
    {"olmo2", "max_position_embeddings", "context_length", 2048},
    {"olmo2", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5, false},
    {"olmo3", "max_position_embeddings", "context_length", 2048},
    {"olmo3", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5, false},
    {"olmo3", "sliding_window", "attention.sliding_window", 4096},
    {"granite", "max_position_embeddings", "context_length", 2048},
    {"granite", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, false},
    {"granite", "attention_multiplier", "attention.scale", 1},
    {"gpt_oss", "num_local_experts", "expert_count", 128},
    {"gpt_oss", "num_experts_per_tok", "expert_used_count", 4},
    {"gpt_oss", "num_attention_heads", "attention.head_count", 64},
    {"gpt_oss", "num_key_value_heads", "attention.head_count_kv", 8},
    {"gpt_oss", "head_dim", "attention.key_length", 64},
    {"gpt_oss", "max_position_embeddings", "context_length", 131072},
    {"gpt_oss", "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5, false},
    {"gpt_oss", "sliding_window", "attention.sliding_window", 128},
    {"gpt_oss", "rope_theta", "rope.freq_base", 150000},
};

// The only supported values of a key, if it is present.
struct Required {
  const char* key;
  const char* expected;
  bool (*accepts)(const Json& value);
};

bool is_false(const Json& value) { return value == false; }

bool is_object(const Json& value) { return value.is_object(); }

constexpr Required kRequired[] = {
    {"use_bidirectional_attention", "false", is_false},
    {"mlp_only_layers", "no layers", [](const Json& value) { return value.empty(); }},
    {"rope_parameters", "an object", is_object},
    {"rope_scaling", "an object", is_object},
    {"tie_word_embeddings", "true or false", [](const Json& value) { return value.is_boolean(); }},
    {"swiglu_limit", "7", [](const Json& value) { return value == 7; }},
    {"swiglu_alpha", "1.702", [](const Json& value) { return value == 1.702; }},
    {"layer_types",
     "full_attention or sliding_attention for each layer",
     [](const Json& value) {
       if (!value.is_array()) return false;
       for (const Json& type : value) {
         if (type != "full_attention" && type != "sliding_attention") return false;
       }
       return true;
     }},
};

// Formats a value for a terminal: escaped to ASCII.
std::string shown(const Json& value) {
  constexpr size_t kMaxShown = 80;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

const Json* object_at(const Json& parent, const char* key) {
  const auto found = parent.find(key);
  return found != parent.end() && found->is_object() ? &*found : nullptr;
}

// Returns the required type name of all layers, for transformers classes that treat layers alike
// whatever their types.
const char* layer_type_of(const Json& config, const std::string& model_type) {
  if (model_type == "llama" || model_type == "granite" || model_type == "olmo2") {
    return "full_attention";
  }
  const bool mistral = model_type == "mistral";
  if (!mistral && model_type != "phi3" && model_type != "mixtral") return nullptr;
  const auto window = config.find("sliding_window");
  const bool has_window = window == config.end() ? mistral : !window->is_null();
  return has_window ? "sliding_attention" : nullptr;
}

// Windowed layers of Gemma 3 and OLMo 3 rotate with a base only.
const Json* local_rope_type(const Json& config) {
  const Json* rope = object_at(config, "rope_parameters");
  const Json* local = rope == nullptr ? nullptr : object_at(*rope, "sliding_attention");
  const auto type = local == nullptr ? Json::const_iterator() : local->find("rope_type");
  return local == nullptr || type == local->end() ? nullptr : &*type;
}

}  // namespace

void take_defaults(const std::string& model_type, const Json& config, Metadata& metadata) {
  for (const Default& row : kDefaults) {
    if (row.model_type != model_type || config.contains(row.spelling) || metadata.has(row.key)) {
      continue;
    }
    const std::string place = std::string(row.spelling) + " of " + model_type;
    if (row.whole) {
      metadata.set(row.key, place, static_cast<uint64_t>(row.value));
    } else {
      metadata.set(row.key, place, row.value);
    }
  }
  if (model_type != "gpt_oss") return;
  if (config.contains("rope_parameters") || config.contains("rope_scaling")) return;
  metadata.set("rope.scaling.type", "rope_scaling of gpt_oss", std::string("yarn"));
  metadata.set("rope.scaling.factor", "rope_scaling of gpt_oss", uint64_t{32});
  metadata.set("rope.scaling.truncate", "rope_scaling of gpt_oss", false);
  metadata.set("rope.scaling.original_context_length", "rope_scaling of gpt_oss", uint64_t{4096});
}

Expected<void> check_unsupported(const Json& config,
                                 const std::string& model_type,
                                 const std::string& file_name) {
  const auto refuse = [&](const std::string& key, const Json& value, const char* expected) {
    return make_error(
        ErrorCode::kUnsupported,
        file_name + ": " + key + ": found " + shown(value) + ", expected " + expected);
  };
  for (const Required& row : kRequired) {
    const auto value = config.find(row.key);
    if (value != config.end() && !value->is_null() && !row.accepts(*value)) {
      return refuse(row.key, *value, row.expected);
    }
  }
  const char* layer_type = layer_type_of(config, model_type);
  if (const auto types = config.find("layer_types");
      layer_type != nullptr && types != config.end() && types->is_array()) {
    const auto layers = config.find("num_hidden_layers");
    if (layers != config.end() && *layers != types->size()) {
      return refuse("layer_types", *types, "one for each of num_hidden_layers");
    }
    for (const Json& type : *types) {
      if (type == layer_type) continue;
      const std::string expected = std::string(layer_type) + " for each layer of " + model_type;
      return refuse("layer_types", *types, expected.c_str());
    }
  }
  const Json* local = local_rope_type(config);
  if ((model_type == "gemma3_text" || model_type == "olmo3") && local != nullptr &&
      *local != "default") {
    return refuse("rope_parameters.sliding_attention.rope_type", *local, "default");
  }
  return {};
}

}  // namespace sluice
