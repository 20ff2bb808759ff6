// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/config_overrides.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/hf_rows.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kScaling[] = {"rope_parameters", "rope_scaling"};
constexpr const char* kBase = "rope_theta";
constexpr const char* kLength = "max_position_embeddings";
constexpr const char* kOriginal = "original_max_position_embeddings";
constexpr const char* kPart = "partial_rotary_factor";
constexpr const char* kTextModel = "text_config";

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

tl::unexpected<Error> refuse(ErrorCode code, const std::string& what) {
  return make_error(code, "--hf-overrides: " + what, "hf-overrides");
}

bool is_object(const Json& object, std::string_view key) {
  const Json* const found = json_field(object, key);
  return found != nullptr && found->is_object();
}

// The text model's configuration; json_parts.h finds it in what is not to be changed.
Json& text_model_of(Json& root) {
  const Json* const nested = text_config_of(root);
  for (auto& [name, value] : root.items()) {
    if (&value == nested) return value;
  }
  return root;
}

// Whether each kind of layers has rotations of its own.
bool is_by_kind(const Json& scaling) {
  return is_object(scaling, "full_attention") || is_object(scaling, "sliding_attention");
}

tl::unexpected<Error> refuse_kinds(const std::string& key) {
  return refuse(ErrorCode::kInvalidArgument,
                key +
                    ": found kinds of layers with rotations of their own, expected "
                    "rope_parameters with full_attention and sliding_attention");
}

// Puts those of what all rotations have that `from` states and `to` does not.
void keep_rotation(const Json& from, Json& to) {
  for (const char* key : {kBase, kPart}) {
    const Json* const old = json_field(from, key);
    if (old != nullptr && !to.contains(key)) to[key] = *old;
  }
}

// Replaces the object with rotations, or those of the kinds of layers that `value` has.
Expected<void> set_scaling(const std::string& name, const Json& value, Json& config) {
  Json earlier = Json::object();
  for (const std::string_view other : kScaling) {
    if (!is_object(config, other)) continue;
    earlier = config[std::string(other)];
    config.erase(std::string(other));
  }
  const bool had_kinds = is_by_kind(earlier);
  if (had_kinds && !is_by_kind(value)) return refuse_kinds(name);
  config[name] = value;
  if (!is_by_kind(value)) {
    keep_rotation(earlier, value.is_object() ? config[name] : config);
    return {};
  }
  for (const auto& [kind, old] : earlier.items()) {
    Json& kinds = config[name];
    if (!kinds.contains(kind)) {
      kinds[kind] = old;
    } else if (had_kinds && old.is_object() && kinds[kind].is_object()) {
      keep_rotation(old, kinds[kind]);
    }
  }
  return {};
}

// Sets a key, also in the objects of halves of a layer, which are read after it.
void set_everywhere(const std::string& name, const Json& value, Json& config) {
  config[name] = value;
  for (const char* half : {"attn_config", "ffn_config", "linear_attn_config"}) {
    if (is_object(config, half) && config[half].contains(name)) config[half][name] = value;
  }
}

// Sets what all rotations have, also where an object with rotations has it.
Expected<void> set_rotation(const std::string& key, const Json& value, Json& config) {
  set_everywhere(key, value, config);
  for (const std::string_view name : kScaling) {
    if (!is_object(config, name)) continue;
    Json& scaling = config[std::string(name)];
    if (is_by_kind(scaling)) return refuse_kinds(key);
    if (scaling.contains(key)) scaling[key] = value;
  }
  return {};
}

// Sets a key of a row, and removes those that would be read before it, but for a key that has a row
// of its own.
void set_key(const std::string& name, const Json& value, Json& config) {
  const bool is_first = std::ranges::any_of(
      kHfRows, [&name](const HfRow& row) { return *std::begin(row.spellings) == name; });
  for (const HfRow& row : kHfRows) {
    const auto* const end = std::ranges::find_if(row.spellings, [&name](const char* spelling) {
      return spelling != nullptr && spelling == name;
    });
    if (is_first || end == std::end(row.spellings)) continue;
    for (const auto* each = std::begin(row.spellings); each != end; ++each) config.erase(*each);
  }
  set_everywhere(name, value, config);
}

Expected<void> check_scaling(const Json& overrides) {
  if (overrides.contains(kScaling[0]) && overrides.contains(kScaling[1])) {
    return refuse(ErrorCode::kInvalidArgument, "rope_parameters and rope_scaling are one object");
  }
  return {};
}

Expected<void> set_keys(const Json& overrides, Json& config) {
  SLUICE_TRY_VOID(check_scaling(overrides));
  for (const std::string_view name : kScaling) {
    const auto found = overrides.find(name);
    if (found == overrides.end()) continue;
    if (!found->is_object() && !found->is_null()) {
      return refuse(ErrorCode::kInvalidArgument, std::string(name) + " must be an object or null");
    }
    SLUICE_TRY_VOID(set_scaling(std::string(name), *found, config));
  }
  for (const auto& [name, value] : overrides.items()) {
    if (name == kBase || name == kPart) {
      SLUICE_TRY_VOID(set_rotation(name, value, config));
    } else if (name != kTextModel && !is_one_of(kScaling, name)) {
      set_key(name, value, config);
    }
  }
  return {};
}

// Reads a number of a GGUF file's rotations from the flag.
Expected<void> set_number(const std::string& name,
                          const Json& value,
                          const char* key,
                          Metadata& metadata) {
  const std::string place = "--hf-overrides: " + name;
  if (value.is_number_unsigned()) {
    metadata.set(key, place, value.get<uint64_t>());
  } else if (value.is_number()) {
    metadata.set(key, place, value.get<double>());
  } else {
    return refuse(ErrorCode::kInvalidArgument, name + ": found no number, expected one");
  }
  return {};
}

// The kind of scaling, by transformers' name.
Expected<std::string> scaling_type(const Json& scaling) {
  const Json* type = json_field(scaling, "rope_type");
  if (type == nullptr) type = json_field(scaling, "type");
  std::string name = type != nullptr && type->is_string() ? type->get<std::string>() : "none";
  if (name == "none" || name == "default" || name == "linear" || name == "yarn") return name;
  return refuse(
      ErrorCode::kUnsupported,
      "rope_type: found " + in_quotes(name) + " for a GGUF file, expected none, linear or yarn");
}

// Removes what the file says of scaling, but for YaRN's part in the scores of attention, which no
// kind of scaling states.
void forget_scaling(Metadata& metadata) {
  constexpr const char* kScores = "rope.scaling.yarn_log_multiplier";
  const Expected<double> scores = metadata.get_float(kScores);
  metadata.erase_all("rope.scal");
  if (scores) metadata.set(kScores, kScores, *scores);
}

// Lengthens the context by the factor. The length before is that of training where none is stated.
Expected<void> stretch_context(double factor, Metadata& metadata) {
  constexpr const char* kTrained = "rope.scaling.original_context_length";
  constexpr double kMost = 1 << 27;
  const Expected<uint64_t> length = metadata.get_uint("context_length");
  if (!length) return {};
  SLUICE_TRY(const uint64_t original, metadata.get_uint_or(kTrained, *length));
  metadata.set(kTrained, kTrained, original);
  const double stretched = std::clamp(static_cast<double>(original) * factor, 0.0, kMost);
  metadata.set("context_length",
               "--hf-overrides: factor",
               std::max(*length, static_cast<uint64_t>(stretched)));
  return {};
}

Expected<void> set_gguf_scaling(const Json& scaling, Metadata& metadata) {
  struct Field {
    const char* name;
    const char* key;
  };

  constexpr const char* kFactor = "rope.scaling.factor";
  constexpr Field kFields[] = {{"factor", kFactor},
                               {kOriginal, "rope.scaling.original_context_length"},
                               {"beta_fast", "rope.scaling.yarn_beta_fast"},
                               {"beta_slow", "rope.scaling.yarn_beta_slow"},
                               {"attention_factor", "rope.scaling.attention_factor"},
                               {kBase, "rope.freq_base"}};
  SLUICE_TRY(const std::string type, scaling_type(scaling));
  // A kind alone, as of llama-server's --rope-scaling, has the file's own factor.
  const bool is_scaled = type == "linear" || type == "yarn";
  if (!is_scaled || json_field(scaling, "factor") != nullptr) forget_scaling(metadata);
  metadata.set("rope.scaling.type", "--hf-overrides: rope_type", type);
  for (const auto& [field, value] : scaling.items()) {
    if (field == "rope_type" || field == "type" || value.is_null()) continue;
    const auto* const known = std::ranges::find(kFields, field, &Field::name);
    if (known == std::end(kFields)) {
      return refuse(ErrorCode::kUnsupported, in_quotes(field) + " is not supported of a GGUF file");
    }
    SLUICE_TRY_VOID(set_number(field, value, known->key, metadata));
  }
  const Expected<double> factor = metadata.get_float(kFactor);
  if (type == "yarn" && factor) return stretch_context(*factor, metadata);
  return {};
}

}  // namespace

Expected<void> override_config(const std::string& overrides, Json& root) {
  if (overrides.empty()) return {};
  const Json keys = Json::parse(overrides, nullptr, /*allow_exceptions=*/false);
  Json& config = text_model_of(root);
  if (is_object(keys, kTextModel)) SLUICE_TRY_VOID(set_keys(keys[kTextModel], config));
  return set_keys(keys, config);
}

Expected<void> override_metadata(const std::string& overrides,
                                 bool has_rope_tensors,
                                 Metadata& metadata) {
  if (overrides.empty()) return {};
  const Json keys = Json::parse(overrides, nullptr, /*allow_exceptions=*/false);
  SLUICE_TRY_VOID(check_scaling(keys));
  for (const auto& [name, value] : keys.items()) {
    if (is_one_of(kScaling, name) && has_rope_tensors) {
      return refuse(ErrorCode::kUnsupported,
                    name + ": found a GGUF file with its scaling as tensors, expected none");
    }
    if (is_one_of(kScaling, name)) {
      if (!value.is_object() && !value.is_null()) {
        return refuse(ErrorCode::kInvalidArgument, name + " must be an object or null");
      }
      SLUICE_TRY_VOID(set_gguf_scaling(value, metadata));
    } else if (name == kBase) {
      SLUICE_TRY_VOID(set_number(name, value, "rope.freq_base", metadata));
    }
  }
  for (const auto& [name, value] : keys.items()) {
    if (is_one_of(kScaling, name) || name == kBase) continue;
    if (name != kLength) {
      return refuse(ErrorCode::kUnsupported, in_quotes(name) + " is not supported of a GGUF file");
    }
    SLUICE_TRY_VOID(set_number(name, value, "context_length", metadata));
  }
  return {};
}

}  // namespace sluice
