// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/hf_config.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <variant>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/weights/config_overrides.h"
#include "engine/weights/file_spec.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/hf_layer_lists.h"
#include "engine/weights/hf_required.h"
#include "engine/weights/hf_rows.h"
#include "engine/weights/json_file.h"
#include "engine/weights/quant_methods.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxArray = 1 << 16;

// Falcon's, in its newer layout alone.
constexpr HfRow kNewLayoutRows[] = {{"attention.head_count_kv", {"num_kv_heads"}}};

// What windowed layers have otherwise.
constexpr HfRow kOtherAttentionRows[] = {
    {"attention.head_count_swa", {"num_attention_heads"}},
    {"attention.head_count_kv_swa", {"num_attention_groups"}},
};

// Kimi-Linear's delta layers.
constexpr HfRow kLinearAttentionRows[] = {
    {"ssm.state_size", {"head_dim"}},
    {"ssm.group_count", {"num_heads"}},
    {"ssm.conv_kernel", {"short_conv_kernel_size"}},
};

// DBRX's attention and experts.
constexpr HfRow kAttentionRows[] = {
    {"attention.head_count_kv", {"kv_n_heads"}},
    {"attention.clamp_kqv", {"clip_qkv"}},
    {"rope.freq_base", {"rope_theta"}},
};

constexpr HfRow kExpertRows[] = {
    {"feed_forward_length", {"ffn_hidden_size"}},
    {"expert_count", {"moe_num_experts"}},
    {"expert_used_count", {"moe_top_k"}},
    {"expert_weights_power", {"moe_normalize_expert_weights"}},
    {"hidden_act", {"name"}},
};

constexpr HfRow kLocalRopeRows[] = {
    {"rope.freq_base_swa", {"rope_theta"}},
    {"partial_rotary_factor_swa", {"partial_rotary_factor"}},
};

constexpr HfRow kEagleRows[] = {
    {"head.layers", {"eagle_aux_hidden_state_layer_ids"}},
    {"head.norm_before_residual", {"norm_before_residual"}},
};

// Wrappers whose text model is not the one of its own model_type, and is refused by theirs.
constexpr std::string_view kOtherWrappers[] = {"paligemma"};

// Converts scalars, strings and arrays of numbers or booleans; other values become their text,
// which no key accepts.
MetadataValue value_of(const Json& json) {
  constexpr size_t kMaxText = 100;
  const auto text_of = [&json] {
    return json.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, kMaxText);
  };
  if (json.is_number_unsigned()) return json.get<uint64_t>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get<std::string>();
  if (!json.is_array() || json.size() > kMaxArray) return text_of();
  std::vector<double> numbers;
  for (const Json& item : json) {
    if (item.is_boolean()) {
      numbers.push_back(item.get<bool>() ? 1 : 0);
    } else if (item.is_number()) {
      numbers.push_back(item.get<double>());
    } else {
      return text_of();
    }
  }
  return numbers;
}

// Some files list the experts' sizes by layer; equal ones are those of all layers.
const Json& the_only_value(const HfRow& row, const Json& value) {
  const bool may_be_listed = std::string_view(row.key).starts_with("expert_");
  if (!may_be_listed || !value.is_array() || value.empty()) return value;
  const auto is_first = [&value](const Json& each) { return each == value.front(); };
  return std::ranges::all_of(value, is_first) ? value.front() : value;
}

template <size_t N>
void take_rows(const Json& object,
               const HfRow (&rows)[N],
               const std::string& place,
               Metadata& metadata) {
  for (const HfRow& row : rows) {
    for (const char* spelling : row.spellings) {
      const Json* found = spelling == nullptr ? nullptr : json_field(object, spelling);
      if (found == nullptr) continue;
      metadata.set(row.key, place + spelling, value_of(the_only_value(row, *found)));
      break;
    }
  }
}

void take_common_rows(const Json& config, Metadata& metadata) {
  take_rows(config, kHfRows, "", metadata);
  const Json* newer = json_field(config, "new_decoder_architecture");
  if (newer != nullptr && *newer == true) take_rows(config, kNewLayoutRows, "", metadata);
}

// Takes the rows of an object inside another one, if it is there.
template <size_t N>
void take_rows_of(const Json& parent,
                  const std::string& name,
                  const HfRow (&rows)[N],
                  Metadata& metadata) {
  const Json* object = json_field(parent, name);
  if (object != nullptr && object->is_object()) take_rows(*object, rows, name + ".", metadata);
}

// Takes what stands in an object for each half of a layer.
void take_halves(const Json& config, Metadata& metadata) {
  take_rows_of(config, "attn_config", kAttentionRows, metadata);
  take_rows_of(config, "ffn_config", kExpertRows, metadata);
  const Json* const experts = json_field(config, "ffn_config");
  if (experts == nullptr || !experts->is_object()) return;
  take_rows_of(*experts, "ffn_act_fn", kExpertRows, metadata);
  // No power at all: weights that are not normalized, unlike those of a missing key.
  constexpr const char* kPower = "moe_normalize_expert_weights";
  if (experts->contains(kPower) && (*experts)[kPower].is_null()) {
    metadata.set("expert_weights_power", std::string("ffn_config.") + kPower, std::string("null"));
  }
}

// The key of metadata.h that this spelling of config.json has.
const char* key_of(std::string_view spelling) {
  const auto is_it = [spelling](const HfRow& row) {
    return std::ranges::any_of(row.spellings, [spelling](const char* each) {
      return each != nullptr && each == spelling;
    });
  };
  const HfRow* const row = std::find_if(std::begin(kHfRows), std::end(kHfRows), is_it);
  if (row != std::end(kHfRows)) return row->key;
  const HfRow* const rope = std::find_if(std::begin(kHfRopeRows), std::end(kHfRopeRows), is_it);
  CHECK(rope != std::end(kHfRopeRows));
  return rope->key;
}

// Sets what `config` omits.
void take_defaults(const Json& config,
                   const FileSpec& spec,
                   std::span<const KeyDefault> defaults,
                   Metadata& metadata) {
  for (const KeyDefault& row : defaults) {
    const char* key = key_of(row.spelling);
    if (config.contains(row.spelling) || metadata.has(key)) continue;
    const std::string place = std::string(row.spelling) + " of " + std::string(spec.model_type);
    std::visit(
        [&](const auto& value) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string_view>) {
            metadata.set(key, place, std::string(value));
          } else {
            metadata.set(key, place, value);
          }
        },
        row.value);
  }
}

// Takes rotations that are listed by layer, and equal in all layers of a kind.
Expected<void> take_listed_rotations(const Json& config, Metadata& metadata) {
  struct Listed {
    const char* spelling;
    const char* full;
    const char* local;
  };

  constexpr Listed kListed[] = {
      {"rope_theta", "rope.freq_base", "rope.freq_base_swa"},
      {"partial_rotary_factors", "partial_rotary_factor", "partial_rotary_factor_swa"}};
  take_rows_of(config, "attention_other_setting", kOtherAttentionRows, metadata);
  const Expected<std::vector<double>> local = metadata.get_numbers("attention.sliding_layers");
  for (const Listed& row : kListed) {
    const Json* list = json_field(config, row.spelling);
    if (list == nullptr || !list->is_array() || !local) continue;
    const std::string found = list->dump().substr(0, 100);
    for (const double kind : {0.0, 1.0}) {
      const char* const key = kind == 0 ? row.full : row.local;
      std::vector<double> values;
      for (size_t i = 0; i < std::min(list->size(), local->size()); ++i) {
        const Json& value = (*list)[i];
        if ((*local)[i] == kind) values.push_back(value.is_number() ? value.get<double>() : 0);
      }
      if (values.empty()) continue;
      metadata.set(key, row.spelling, values.front());
      if (std::ranges::count(values, values.front()) == std::ssize(values)) continue;
      return metadata.wrong(key, found, "one number for all layers of a kind");
    }
  }
  return {};
}

// Gives types of rope that some files call otherwise their name.
void rename_rope_type(const FileSpec& spec, Metadata& metadata) {
  const Expected<std::string> type = metadata.get_string("rope.scaling.type");
  if (!type) return;
  const auto row = std::ranges::find(spec.rope_type_names, *type, &RopeTypeName::stored);
  if (row == spec.rope_type_names.end()) return;
  metadata.set("rope.scaling.type", "rope_scaling.type", std::string(row->usual));
}

void take_rope(const Json& config, Metadata& metadata) {
  take_rows(config, kHfRopeRows, "", metadata);  // the old spelling is partly at the top level
  if (const Json* local = json_field(config, "rope_local_base_freq"); local != nullptr) {
    metadata.set("rope.freq_base_swa", "rope_local_base_freq", value_of(*local));
  }
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = json_field(config, name);
    if (rope == nullptr || !rope->is_object()) continue;
    const std::string place = std::string(name) + ".";
    take_rows(*rope, kHfRopeRows, place, metadata);
    if (const Json* full = json_field(*rope, "full_attention"); full && full->is_object()) {
      take_rows(*full, kHfRopeRows, place + "full_attention.", metadata);
    }
    const Json* sliding = json_field(*rope, "sliding_attention");
    if (sliding == nullptr || !sliding->is_object()) continue;
    take_rows(*sliding, kLocalRopeRows, place + "sliding_attention.", metadata);
  }
}

// Derives sizes that follow from two keys.
Expected<void> take_derived(const Json& config,
                            const std::string& model_type,
                            const FileSpec& spec,
                            Metadata& metadata) {
  const bool is_whole_heads = spec.has_unlike_layers && !spec.is_partly_rotated;
  if (metadata.has("partial_rotary_factor") && !is_whole_heads) {
    SLUICE_TRY(const double part, metadata.get_positive_or("partial_rotary_factor", 1));
    if (part != 1 && !spec.is_partly_rotated) {
      return metadata.wrong(
          "partial_rotary_factor", std::to_string(part), "1 in a model of type " + model_type);
    }
    SLUICE_TRY(const int32_t hidden, metadata.get_count("embedding_length", 1 << 20));
    SLUICE_TRY(const int32_t heads, metadata.get_count("attention.head_count", 1024));
    SLUICE_TRY(const int32_t width,
               metadata.get_count_or("attention.key_length", 1024, hidden / heads));
    if (spec.has_latents) return {};  // qk_rope_head_dim rotates
    if (part > 1) return metadata.wrong("partial_rotary_factor", std::to_string(part), "at most 1");
    metadata.set("rope.dimension_count",
                 "partial_rotary_factor",
                 static_cast<uint64_t>(static_cast<double>(width) * part));
  }
  // The original context, if stated beside max_position_embeddings, decides the factor.
  if (const Json* original = json_field(config, "original_max_position_embeddings");
      original != nullptr && original->is_number_unsigned()) {
    SLUICE_TRY(const int32_t context, metadata.get_count("context_length", 1 << 27));
    const auto trained = original->get<double>();
    if (trained < 1) {
      return metadata.wrong("rope.scaling.original_context_length", "0", "1 or more");
    }
    metadata.set("rope.scaling.original_context_length",
                 "original_max_position_embeddings",
                 original->get<uint64_t>());
    metadata.set("rope.scaling.factor", "max_position_embeddings", context / trained);
  }
  return {};
}

tl::unexpected<Error> wrong_file(const std::string& file,
                                 const std::string& field,
                                 const std::string& found,
                                 const std::string& expected) {
  return make_error(ErrorCode::kDataLoss,
                    file + ": " + field + ": found " + found + ", expected " + expected);
}

// Returns the model_type that names the family: the text model's, or that of the whole; null: none.
const Json* type_of(const Json& root, const Json& config) {
  const Json* const whole = json_field(root, "model_type");
  const Json* const own = json_field(config, "model_type");
  const auto is_it = [whole](std::string_view name) { return whole != nullptr && *whole == name; };
  return own == nullptr || std::ranges::any_of(kOtherWrappers, is_it) ? whole : own;
}

Expected<Json> parse_object(std::span<const std::byte> json,
                            const std::string& file_name,
                            const std::string& overrides = {}) {
  if (json.size() > kMaxConfigBytes) {
    return wrong_file(file_name, "file", std::to_string(json.size()) + " bytes", "at most 64 MiB");
  }
  const std::string text =
      json_without_nan({reinterpret_cast<const char*>(json.data()), json.size()}, file_name);
  if (is_deeper_json(text, kMaxJsonLevels))
    return wrong_file(file_name, "file", "values nested deeper than 16", "a configuration");
  Json root = Json::parse(text, nullptr, false);
  if (!root.is_object()) return wrong_file(file_name, "file", "no JSON object", "a JSON object");
  SLUICE_TRY_VOID(override_config(overrides, root));
  return root;
}

void take_layer_lists(const Json& config, const FileSpec& spec, Metadata& metadata) {
  take_layer_types(config, spec.has_unlike_layers, metadata);
  take_ffn_types(config, metadata);
  take_layer_kinds(config, metadata);
  take_counted_layers(config, metadata);
  take_step_limits(config, metadata);
  take_indexer_types(config, metadata);
}

Expected<void> take_unlike_layers(const Json& config, Metadata& metadata) {
  SLUICE_TRY_VOID(take_layer_overrides(config, metadata));
  return take_block_configs(config, metadata);
}

}  // namespace

Expected<HfConfig> parse_hf_config(std::span<const std::byte> json,
                                   const std::string& file_name,
                                   const std::string& overrides) {
  const auto fail =
      [&](const std::string& field, const std::string& found, const std::string& expected) {
        return wrong_file(file_name, field, found, expected);
      };
  SLUICE_TRY(const Json root, parse_object(json, file_name, overrides));
  const Json* const nested = text_config_of(root);
  const Json& config = nested != nullptr ? *nested : root;

  HfConfig result{.model_type = {},
                  .is_wrapper = &config != &root,
                  .tied_embeddings = false,
                  .quantization = {},
                  .metadata = Metadata(file_name)};
  const Json* const type = type_of(root, config);
  if (type == nullptr && json_field(root, "_class_name") != nullptr) {
    return fail("model_type", "nothing, beside the _class_name of a diffusion model", "a string");
  }
  if (type == nullptr || !type->is_string()) return fail("model_type", "nothing", "a string");
  result.model_type = type->get<std::string>();
  if (result.model_type.size() > 100)
    return fail("model_type", sluice::in_quotes(result.model_type), "a name");
  // The text model of a multimodal one whose keys are not nested, as in files before 2025.
  const std::string text_type = result.model_type + "_text";
  if (find_file_spec(result.model_type) == nullptr && find_file_spec(text_type) != nullptr) {
    result.model_type = text_type;
  }
  constexpr FileSpec kUnknown;
  const FileSpec* const found = find_file_spec(result.model_type);
  const FileSpec& spec = found != nullptr ? *found : kUnknown;
  result.spec = found;
  result.tied_embeddings = spec.ties_embedding;
  const Json* only_quantization = nullptr;
  for (const Json* object : {&config, &root}) {  // what is said of the whole wins
    // compression_config is the older name.
    for (const char* key : {"quantization_config", "compression_config"}) {
      const Json* quantization = json_field(*object, key);
      if (quantization == nullptr) continue;
      if (only_quantization != nullptr && *only_quantization != *quantization) {
        return fail(key, "another one than that of another place", "one quantization");
      }
      only_quantization = quantization;
      SLUICE_TRY(result.quantization, read_quantization(*quantization, file_name + ": " + key));
    }
    if (const Json* tied = json_field(*object, "tie_word_embeddings"); tied && tied->is_boolean()) {
      result.tied_embeddings = tied->get<bool>();
    }
  }
  take_common_rows(config, result.metadata);
  take_rows_of(root, "eagle_config", kEagleRows, result.metadata);
  take_rows_of(config, "linear_attn_config", kLinearAttentionRows, result.metadata);
  take_rope(config, result.metadata);
  take_halves(config, result.metadata);
  rename_rope_type(spec, result.metadata);
  if (!config.contains("rope_parameters") && !config.contains("rope_scaling")) {
    take_defaults(config, spec, spec.rope_defaults, result.metadata);
  }
  take_defaults(config, spec, spec.defaults, result.metadata);
  take_layer_lists(config, spec, result.metadata);
  const bool has_window = result.metadata.has("attention.sliding_window");
  if (found == nullptr) return result;  // find_model_spec() refuses it by its name
  SLUICE_TRY_VOID(check_required(config, spec, has_window, file_name));
  if (spec.has_unlike_layers) SLUICE_TRY_VOID(take_listed_rotations(config, result.metadata));
  SLUICE_TRY_VOID(take_derived(config, result.model_type, spec, result.metadata));
  if (spec.has_unlike_layers) SLUICE_TRY_VOID(take_unlike_layers(config, result.metadata));
  return result;
}

Expected<Quantization> parse_hf_quant_config(std::span<const std::byte> json,
                                             const std::string& file_name,
                                             std::string_view usual_method) {
  SLUICE_TRY(const Json root, parse_object(json, file_name));
  return read_quantization(root, file_name, usual_method);
}

}  // namespace sluice
