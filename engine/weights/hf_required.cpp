// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/hf_required.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/weights/gguf_parse.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// The only supported values of a key of any family, if it is present.
struct Required {
  const char* key;
  const char* expected;
  bool (*accepts)(const Json& value);
};

bool is_false(const Json& value) { return value == false; }

bool is_object(const Json& value) { return value.is_object(); }

constexpr const char* kAttention = "attention";  // Granite's name of full_attention

// Whether the layer has DeepSeek V3.2's attention, whose older name transformers had.
bool is_indexed(const Json& type) {
  return type == "indexed_attention" || type == "deepseek_sparse_attention";
}

bool is_attention(const Json& type) {
  return type == "full_attention" || type == "sliding_attention" || type == kAttention ||
         is_indexed(type);
}

bool is_chunked(const Json& type) { return type == "chunked_attention"; }

constexpr const char* kBidirectional = "use_bidirectional_attention";

constexpr Required kRequired[] = {
    {kBidirectional,
     "false, or \"vision\", which concerns images",
     [](const Json& value) { return is_false(value) || value == "vision"; }},
    {"logn_attention_scale", "false", is_false},
    {"mlp_only_layers", "no layers", [](const Json& value) { return value.empty(); }},
    {"sparse_config", "nothing: all keys are read", [](const Json&) { return false; }},
    {"rope_parameters", "an object", is_object},
    {"rope_scaling", "an object", is_object},
    {"tie_word_embeddings", "true or false", [](const Json& value) { return value.is_boolean(); }},
    {"mlp_layer_types",
     "dense or sparse for each layer",
     [](const Json& value) {
       return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& type) {
                return type == "dense" || type == "sparse";
              });
     }},
    {"layer_types",
     "full_attention or sliding_attention for each layer",
     [](const Json& value) {
       if (!value.is_array()) return false;
       for (const Json& type : value) {
         if (!is_attention(type) && !is_recurrent_type(type) && !is_chunked(type)) return false;
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
const char* layer_type_of(const FileSpec& spec, bool has_window) {
  if (spec.layer_types == LayerTypes::kFull) return "full_attention";
  const bool are_windowed = spec.layer_types == LayerTypes::kAsTheWindow && has_window;
  return are_windowed ? "sliding_attention" : nullptr;
}

const Json* local_rope_type(const Json& config) {
  const Json* rope = object_at(config, "rope_parameters");
  const Json* local = rope == nullptr ? nullptr : object_at(*rope, "sliding_attention");
  const auto type = local == nullptr ? Json::const_iterator() : local->find("rope_type");
  return local == nullptr || type == local->end() ? nullptr : &*type;
}

class Checker {
 public:
  Checker(const Json& config, const FileSpec& spec, const std::string& file_name)
      : config_(config), spec_(spec), file_name_(file_name) {}

  Expected<void> check_values() const {
    for (const Required& row : kRequired) {
      const Json* value = stated(row.key);
      if (spec_.may_be_encoder && std::string_view(row.key) == kBidirectional) continue;
      if (value != nullptr && !row.accepts(*value)) return refuse(row.key, *value, row.expected);
    }
    for (const RequiredNumber& row : spec_.required) {
      const Json* value = stated(row.spelling);
      if (value == nullptr || *value == row.value) continue;
      if (value->is_boolean() && value->get<bool>() == (row.value != 0)) continue;
      return refuse(row.spelling, *value, number_text(row.value));
    }
    const Json* local = local_rope_type(config_);
    if (spec_.scales_full_layers_only && local != nullptr && *local != "default") {
      return refuse("rope_parameters.sliding_attention.rope_type", *local, "default");
    }
    return {};
  }

  Expected<void> check_layer_types(bool has_window) const {
    const char* layer_type = layer_type_of(spec_, has_window);
    const Json* types = stated("layer_types");
    const bool are_chunked = spec_.layer_types == LayerTypes::kChunked;
    const auto is_other = [&](const Json& type) {
      if (is_recurrent_type(type)) return spec_.layer_types != LayerTypes::kRecurrent;
      return type != "full_attention" && type != kAttention && is_chunked(type) != are_chunked;
    };
    if (types != nullptr && std::ranges::any_of(*types, is_other)) {
      return refuse("layer_types",
                    *types,
                    std::string("full_attention or ") + (are_chunked ? "chunked" : "sliding") +
                        "_attention for each layer");
    }
    if (types != nullptr && !spec_.has_indexers &&
        std::ranges::any_of(*types, is_indexed)) {
      return refuse("layer_types", *types, "no indexed or deepseek_sparse_attention");
    }
    if (layer_type == nullptr || types == nullptr) return {};
    const auto layers = config_.find("num_hidden_layers");
    if (layers != config_.end() && *layers != types->size()) {
      return refuse("layer_types", *types, "one for each of num_hidden_layers");
    }
    for (const Json& type : *types) {
      if (type == layer_type) continue;
      if (type == kAttention && spec_.layer_types == LayerTypes::kFull) continue;
      return refuse(
          "layer_types",
          *types,
          std::string(layer_type) + " for each layer of " + std::string(spec_.model_type));
    }
    return {};
  }

 private:
  [[nodiscard]] const Json* stated(std::string_view key) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

  [[nodiscard]] tl::unexpected<Error> refuse(std::string_view key,
                                             const Json& value,
                                             const std::string& expected) const {
    return make_error(ErrorCode::kUnsupported,
                      file_name_ + ": " + std::string(key) + ": found " + shown(value) +
                          ", expected " + expected);
  }

  const Json& config_;
  const FileSpec& spec_;
  const std::string& file_name_;
};

}  // namespace

bool is_recurrent_type(const nlohmann::json& type) {
  return type == "linear_attention" || type == "conv" || type == "mamba";  // Granite's name
}

Expected<void> check_required(const Json& config,
                              const FileSpec& spec,
                              bool has_window,
                              const std::string& file_name) {
  const Checker checker(config, spec, file_name);
  SLUICE_TRY_VOID(checker.check_values());
  return checker.check_layer_types(has_window);
}

}  // namespace sluice
