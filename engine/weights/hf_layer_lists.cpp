// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/hf_layer_lists.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/hf_required.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostLayers = 1 << 16;

// Returns 1 for each number below `count` in a list such as "3,4,5"; empty: it is no list.
std::vector<double> listed_flags(std::string_view text, uint64_t count) {
  if (count > kMostLayers) return {};
  std::vector<double> flags(static_cast<size_t>(count));
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    if (error != std::errc() || end != item.data() + item.size()) return {};
    if (number < count) flags[static_cast<size_t>(number)] = 1;
    text.remove_prefix(std::min(text.size(), item.size() + 1));
  }
  return flags;
}

}  // namespace

void take_layer_types(const Json& config, bool may_go_on, Metadata& metadata) {
  std::vector<double> sliding;
  if (const Json* types = json_field(config, "layer_types"); types != nullptr && types->is_array()) {
    std::vector<double> recurrent;
    for (const Json& type : *types) {
      sliding.push_back(type == "sliding_attention" || type == "chunked_attention" ? 1 : 0);
      recurrent.push_back(is_recurrent_type(type) ? 1 : 0);
    }
    const Expected<uint64_t> layers = metadata.get_uint("block_count");
    if (may_go_on && layers && *layers < sliding.size()) {
      metadata.set("attention.sliding_module", "layer_types", sliding[*layers] != 0);
      sliding.resize(static_cast<size_t>(*layers));
      recurrent.resize(static_cast<size_t>(*layers));
    }
    metadata.set("attention.sliding_layers", "layer_types", std::move(sliding));
    metadata.set("attention.recurrent_layers", "layer_types", std::move(recurrent));
    return;
  }
  const Expected<uint64_t> first = metadata.get_uint("max_window_layers");
  const Expected<uint64_t> layers = metadata.get_uint("block_count");
  if (!first || !layers || *layers > kMostLayers) return;
  for (uint64_t i = 0; i < *layers; ++i) sliding.push_back(i >= *first ? 1 : 0);
  metadata.set("attention.sliding_layers", "max_window_layers", std::move(sliding));
}

void take_ffn_types(const Json& config, Metadata& metadata) {
  const Json* numbers = json_field(config, "moe_layers");
  const Expected<uint64_t> layers = metadata.get_uint("block_count");
  if (numbers != nullptr && numbers->is_array() && layers && *layers <= kMostLayers) {
    std::vector<double> listed(static_cast<size_t>(*layers));
    for (const Json& number : *numbers) {
      if (number.is_number_unsigned() && number.get<uint64_t>() < *layers) {
        listed[number.get<size_t>()] = 1;
      }
    }
    metadata.set("expert_layers", "moe_layers", std::move(listed));
  }
  if (const Json* text = json_field(config, "moe_layers_enum"); text && text->is_string() && layers) {
    metadata.set(
        "expert_layers", "moe_layers_enum", listed_flags(text->get<std::string>(), *layers));
  }
  if (const Json* flags = json_field(config, "moe_layer_freq"); flags && flags->is_array()) {
    std::vector<double> sparse;
    for (const Json& flag : *flags) sparse.push_back(flag.is_number() ? flag.get<double>() : 0);
    metadata.set("expert_layers", "moe_layer_freq", std::move(sparse));
  }
  const Json* types = json_field(config, "mlp_layer_types");
  if (types == nullptr || !types->is_array()) return;
  std::vector<double> sparse;
  for (const Json& type : *types) sparse.push_back(type == "sparse" ? 1 : 0);
  metadata.set("expert_layers", "mlp_layer_types", std::move(sparse));
}

void take_layer_kinds(const Json& config, Metadata& metadata) {
  struct Kind {
    std::string_view type;
    std::string_view older;
    std::string_view letter;  // of a pattern
  };

  constexpr Kind kKinds[] = {{"full_attention", "attention", "*"},
                             {"linear_attention", "mamba", "M"},
                             {"mlp", "mlp", "-"},
                             {"moe", "moe", "E"}};
  const Json* list = json_field(config, "layers_block_type");
  const Json* pattern = json_field(config, "hybrid_override_pattern");
  std::vector<std::string> types;
  if (list != nullptr && list->is_array()) {
    for (const Json& type : *list) types.push_back(type.is_string() ? type.get<std::string>() : "");
  } else if (list == nullptr && pattern != nullptr && pattern->is_string()) {
    for (const char letter : pattern->get_ref<const std::string&>()) types.emplace_back(1, letter);
  }
  if (types.empty()) return;
  std::vector<double> kinds;
  std::vector<double> recurrent;
  for (const std::string& type : types) {
    const auto found = std::ranges::find_if(kKinds, [&type](const Kind& kind) {
      return kind.type == type || kind.older == type || kind.letter == type;
    });
    const bool is_known = found != std::end(kKinds);
    kinds.push_back(is_known ? static_cast<double>(found - std::begin(kKinds)) : -1);
    recurrent.push_back(kinds.back() == 1 ? 1 : 0);
  }
  const char* const place = list != nullptr ? "layers_block_type" : "hybrid_override_pattern";
  if (!metadata.has("block_count")) {
    metadata.set("block_count", place, static_cast<uint64_t>(kinds.size()));
  }
  metadata.set("layer_kinds", place, std::move(kinds));
  metadata.set("attention.recurrent_layers", place, std::move(recurrent));
}

void take_counted_layers(const Json& config, Metadata& metadata) {
  const Json* lists = json_field(config, "linear_attn_config");
  const Json* full = lists == nullptr ? nullptr : json_field(*lists, "full_attn_layers");
  const Expected<uint64_t> layers = metadata.get_uint("block_count");
  if (full == nullptr || !full->is_array() || !layers || *layers > kMostLayers) return;
  std::vector<double> recurrent(static_cast<size_t>(*layers), 1);
  for (const Json& number : *full) {  // from 1 on
    if (!number.is_number_unsigned() || number.get<uint64_t>() - 1 >= *layers) continue;
    recurrent[number.get<size_t>() - 1] = 0;
  }
  metadata.set("attention.recurrent_layers", "linear_attn_config", std::move(recurrent));
}

void take_step_limits(const Json& config, Metadata& metadata) {
  const Json* limits = json_field(config, "time_step_limit");
  if (limits == nullptr || !limits->is_array() || limits->size() != 2) return;
  const Json& least = (*limits)[0];
  const Json& most = (*limits)[1];
  const auto is_infinity = [](const Json& value) {
    return value == "inf" || value == "Infinity";
  };
  const Json* object = json_field(most, "__float__");
  const bool has_no_end =
      most.is_null() || is_infinity(most) || (object != nullptr && is_infinity(*object));
  if (!least.is_number() || !(most.is_number() || has_no_end)) return;
  metadata.set(
      "ssm.step_limits",
      "time_step_limit",
      std::vector<double>{
          least.get<double>(),
          has_no_end ? std::numeric_limits<double>::infinity() : most.get<double>()});
}

void take_indexer_types(const Json& config, Metadata& metadata) {
  static constexpr int64_t kMost = 1 << 20;
  std::vector<double> own;
  const auto number = [&config](const char* key, int64_t absent) {
    const Json* value = json_field(config, key);
    const bool is_number = value != nullptr && value->is_number_integer();
    return is_number ? std::clamp<int64_t>(value->get<int64_t>(), 0, kMost) : absent;
  };
  const auto add = [&own](bool is_own, bool is_earlier) {
    own.push_back(is_own ? 1 : is_earlier ? 0 : -1);
  };
  for (const char* key : {"indexer_types", "index_topk_pattern"}) {
    const Json* types = json_field(config, key);
    if (types == nullptr || !own.empty()) continue;
    if (types->is_string()) {
      for (const char type : types->get_ref<const std::string&>()) add(type == 'F', type == 'S');
    }
    for (size_t i = 0; types->is_array() && i < types->size(); ++i) {
      add((*types)[i] == "full", (*types)[i] == "shared");
    }
  }
  const int64_t period = number("index_topk_freq", 1);
  const int64_t offset = number("index_skip_topk_offset", 2);
  const Expected<uint64_t> layers = metadata.get_uint("block_count");
  if (own.empty() && period > 1 && layers && *layers <= kMostLayers) {
    for (int64_t i = 0; i < static_cast<int64_t>(*layers); ++i) {
      add(std::max<int64_t>(i - offset + 1, 0) % period == 0, true);
    }
  }
  if (own.empty()) return;
  metadata.set("attention.indexer.types", "indexer_types", std::move(own));
}

Expected<void> take_layer_overrides(const Json& config, Metadata& metadata) {
  const Json* layers = json_field(config, "per_layer_config");
  if (layers == nullptr) return {};

  struct Key {
    const char* name;
    const char* usual;
    const char* listed;
  };

  constexpr Key kKeys[] = {
      {"head_dim", "attention.key_length", "attention.layers_key_length"},
      {"num_attention_heads", "attention.head_count", "attention.layers_head_count"},
      {"num_key_value_heads", "attention.head_count_kv", "attention.layers_head_count_kv"}};
  SLUICE_TRY(const int32_t count, metadata.get_count("block_count", 1024));
  std::map<std::string, std::vector<double>> listed;
  for (const Key& key : kKeys) {
    if (const Expected<double> usual = metadata.get_float(key.usual)) {
      listed[key.name].assign(static_cast<size_t>(count), *usual);
    }
  }
  const auto refuse = [&](const std::string& found) {
    metadata.set("per_layer_config", "per_layer_config", found);
    return metadata.wrong("per_layer_config",
                          found,
                          "head_dim, num_attention_heads and num_key_value_heads of layers 0 to " +
                              std::to_string(count - 1));
  };
  if (!layers->is_object()) return refuse("no object");
  for (const auto& [number, values] : layers->items()) {
    int32_t layer = -1;
    std::from_chars(number.data(), number.data() + number.size(), layer);
    if (layer < 0 || layer >= count || std::to_string(layer) != number || !values.is_object()) {
      return refuse(sluice::in_quotes(number));
    }
    for (const auto& [name, value] : values.items()) {
      const auto found = listed.find(name);
      if (found == listed.end() || !value.is_number_unsigned()) {
        return refuse(sluice::in_quotes(name) + " of layer " + number);
      }
      found->second[static_cast<size_t>(layer)] = value.get<double>();
    }
  }
  for (const Key& key : kKeys) {
    if (!listed.contains(key.name)) continue;
    metadata.set(key.listed, std::string("per_layer_config.") + key.name, listed[key.name]);
  }
  return {};
}

namespace {

// Whether a field says something: it is there, and neither null nor false.
bool is_set(const Json& object, const char* field) {
  const Json* value = json_field(object, field);
  return value != nullptr && *value != false;
}

// Columns of a dense half: two thirds of a multiple of the model's, rounded up to whole 256.
// Returns 0 for what is no size.
double block_width(const Json& half, int32_t hidden) {
  constexpr int64_t kStep = 256;
  constexpr double kMost = 1 << 20;
  const Json* multiple = json_field(half, "ffn_mult");
  const Json* width = json_field(half, "intermediate_size");
  if (multiple != nullptr && multiple->is_number()) {
    const double columns = 2 * multiple->get<double>() * hidden / 3;
    if (!(columns >= 1 && columns <= kMost)) return 0;
    return static_cast<double>((static_cast<int64_t>(columns) + kStep - 1) / kStep * kStep);
  }
  if (width == nullptr || !width->is_number_unsigned()) return 0;
  const auto columns = width->get<double>();
  return columns <= kMost ? columns : 0;
}

}  // namespace

Expected<void> take_block_configs(const Json& config, Metadata& metadata) {
  constexpr const char* kKey = "block_configs";
  const Json* blocks = json_field(config, kKey);
  if (blocks == nullptr) return {};
  const auto refuse = [&](size_t layer, const std::string& found, const std::string& expected) {
    const std::string what = found + " of layer " + std::to_string(layer);
    metadata.set(kKey, kKey, what);
    return metadata.wrong(kKey, what, expected);
  };
  SLUICE_TRY(const int32_t hidden, metadata.get_count("embedding_length", 1 << 20));
  SLUICE_TRY(const int32_t heads, metadata.get_count("attention.head_count", 1024));
  std::vector<double> kv_heads;
  std::vector<double> widths;
  for (size_t i = 0; blocks->is_array() && i < std::min(blocks->size(), kMostLayers); ++i) {
    const Json* attention = json_field((*blocks)[i], "attention");
    const Json* ffn = json_field((*blocks)[i], "ffn");
    if (attention == nullptr || ffn == nullptr) return refuse(i, "no half", "attention and ffn");
    for (const char* field : {"replace_with_linear",
                              "sparsify",
                              "num_sink_tokens",
                              "window_length",
                              "unshifted_sink",
                              "use_prefill_window_in_sink_attention"}) {
      if (!is_set(*attention, field) && !is_set(*ffn, field)) continue;
      return refuse(i, field, "full attention and a dense half, or no_op");
    }
    const Json* group = json_field(*attention, "n_heads_in_group");
    const bool is_count = group != nullptr && group->is_number_unsigned();
    const uint64_t size = is_count ? group->get<uint64_t>() : 0;
    kv_heads.push_back(0);
    widths.push_back(0);
    if (!is_set(*attention, "no_op")) {
      if (size == 0 || static_cast<uint64_t>(heads) % size != 0) {
        return refuse(i, "n_heads_in_group", "a divisor of " + std::to_string(heads) + " heads");
      }
      kv_heads.back() = static_cast<double>(static_cast<uint64_t>(heads) / size);
    }
    if (is_set(*ffn, "no_op")) continue;
    widths.back() = block_width(*ffn, hidden);
    if (widths.back() == 0) return refuse(i, "ffn", "ffn_mult or intermediate_size");
  }
  metadata.set("attention.layers_head_count_kv", kKey, std::move(kv_heads));
  metadata.set("layers_feed_forward_length", kKey, std::move(widths));
  return {};
}

}  // namespace sluice
