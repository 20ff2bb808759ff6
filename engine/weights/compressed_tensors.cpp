// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/compressed_tensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

namespace sluice {
namespace {

using Json = nlohmann::json;

// What a field may hold. An absent one is null.
struct Field {
  const char* name;
  const char* expected;
  bool (*is_right)(const Json& value);
};

bool is_any(const Json&) { return true; }

bool is_null(const Json& value) { return value.is_null(); }

bool is_eight(const Json& value) { return value == 8; }

bool is_int(const Json& value) { return value == "int"; }

bool is_channel(const Json& value) { return value == "channel"; }

bool is_token(const Json& value) { return value == "token"; }

bool is_true(const Json& value) { return value == true; }

bool is_not_true(const Json& value) { return value.is_null() || value == false; }

bool is_not_false(const Json& value) { return value.is_null() || value == true; }

bool is_format(const Json& value) { return value == "int-quantized"; }

bool is_format_or_null(const Json& value) { return value.is_null() || is_format(value); }

bool is_nothing(const Json& value) { return value.is_null() || value == Json::object(); }

bool is_status(const Json& value) { return value == "compressed" || value == "frozen"; }

bool is_names(const Json& value) {
  if (value.is_null()) return true;
  if (!value.is_array()) return false;
  for (const Json& name : value) {
    if (!name.is_string()) return false;
  }
  return true;
}

bool is_groups(const Json& value) { return value.is_object() && !value.empty(); }

bool is_no_sparsity(const Json& value) {
  if (is_nothing(value)) return true;
  return value.is_object() && value.contains("format") && value["format"] == "dense";
}

constexpr Field kWeights[] = {
    {"strategy", "\"channel\"", is_channel},
    {"dynamic", "false", is_not_true},
};

constexpr Field kInput[] = {
    {"strategy", "\"token\"", is_token},
    {"dynamic", "true", is_true},
};

// Of both. How codes and scales came to be, and the type that the scales' tensor names anyway:
// is_any.
constexpr Field kCodes[] = {
    {"num_bits", "8", is_eight},
    {"type", "\"int\"", is_int},
    {"symmetric", "true", is_not_false},
    {"group_size", "null", is_null},
    {"block_structure", "null", is_null},
    {"actorder", "null", is_null},
    {"observer", "", is_any},
    {"observer_kwargs", "", is_any},
    {"scale_dtype", "", is_any},
    {"zp_dtype", "", is_any},
};

bool is_object(const Json& value) { return value.is_object(); }

constexpr Field kGroup[] = {
    {"targets", "a list of names", is_names},
    {"weights", "an object", is_object},
    {"input_activations", "an object", is_object},
    {"output_activations", "null", is_null},
    {"format", "\"int-quantized\"", is_format_or_null},
};

constexpr Field kConfig[] = {
    {"quant_method", "", is_any},  // the caller's
    {"format", "\"int-quantized\"", is_format},
    {"quantization_status", "\"compressed\"", is_status},
    {"config_groups", "an object of groups", is_groups},
    {"ignore", "a list of names", is_names},
    {"kv_cache_scheme", "null", is_null},
    {"sparsity_config", "null", is_no_sparsity},
    {"moe_sparsity_config", "null", is_nothing},
    {"transform_config", "null", is_nothing},
    {"global_compression_ratio", "", is_any},
    {"version", "", is_any},
};

std::string shown(const Json& value) {
  constexpr size_t kMost = 60;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

Expected<void> check_values(const Json& object,
                            std::span<const Field> fields,
                            const std::string& place) {
  for (const Field& field : fields) {
    const auto found = object.find(field.name);
    const Json value = found == object.end() ? Json(nullptr) : *found;
    if (field.is_right(value)) continue;
    return make_error(ErrorCode::kUnsupported,
                      place + "." + field.name + ": found " +
                          (found == object.end() ? "nothing" : shown(value)) + ", expected " +
                          field.expected);
  }
  return {};
}

// Each field of both lists is right, and there is no other.
Expected<void> check_fields(const Json& object,
                            std::span<const Field> fields,
                            const std::string& place,
                            std::span<const Field> more = {}) {
  SLUICE_TRY_VOID(check_values(object, fields, place));
  SLUICE_TRY_VOID(check_values(object, more, place));
  for (const auto& [name, value] : object.items()) {
    const auto is_this = [&name](const Field& field) { return name == field.name; };
    if (std::any_of(fields.begin(), fields.end(), is_this)) continue;
    if (std::any_of(more.begin(), more.end(), is_this)) continue;
    return make_error(ErrorCode::kUnsupported,
                      place + ": found field " + shown(name) + ", expected none of that name");
  }
  return {};
}

}  // namespace

Expected<void> check_compressed_tensors(const Json& config, const std::string& place) {
  SLUICE_TRY_VOID(check_fields(config, kConfig, place));
  for (const auto& [name, group] : config["config_groups"].items()) {
    const std::string at = place + ".config_groups." + shown(name);
    if (!group.is_object()) {
      return make_error(ErrorCode::kUnsupported,
                        at + ": found " + shown(group) + ", expected an object");
    }
    SLUICE_TRY_VOID(check_fields(group, kGroup, at));
    SLUICE_TRY_VOID(check_fields(group["weights"], kWeights, at + ".weights", kCodes));
    SLUICE_TRY_VOID(
        check_fields(group["input_activations"], kInput, at + ".input_activations", kCodes));
  }
  return {};
}

}  // namespace sluice
