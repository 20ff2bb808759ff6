// SPDX-License-Identifier: Apache-2.0
#include "server/tools/argument_schema.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Keywords that bind nothing, or are read with those that do.
constexpr std::array<std::string_view, 13> kNotes = {"title",
                                                     "description",
                                                     "default",
                                                     "examples",
                                                     "$schema",
                                                     "$id",
                                                     "$comment",
                                                     "deprecated",
                                                     "readOnly",
                                                     "writeOnly",
                                                     "$defs",
                                                     "definitions",
                                                     "type"};
constexpr std::array<std::string_view, 3> kOfObjects = {
    "properties", "required", "additionalProperties"};

std::set<std::string_view> required_of(const Json& schema) {
  std::set<std::string_view> names;
  const Json* list = find_field(schema, "required");
  if (list == nullptr || !list->is_array()) return names;
  for (const Json& name : *list) {
    if (name.is_string()) names.insert(name.get_ref<const std::string&>());
  }
  return names;
}

}  // namespace

Expected<void> ArgumentRules::refuse(const std::string& keyword, const std::string& place) const {
  if (!is_strict) return {};
  return make_error(ErrorCode::kUnsupported,
                    "unsupported keyword '" + show_text(keyword) + "' at " + show_text(place) +
                        " of tool '" + tool +
                        "': the model does not write arguments as JSON, and in its form it "
                        "cannot be kept",
                    "tools");
}

std::string ArgumentRules::owner_of(const std::string& key) const {
  return "#/properties/" + show_text(key) + " of tool '" + tool + "'";
}

std::string other_keyword(const Json& schema, std::span<const std::string_view> known) {
  for (const auto& [key, value] : schema.items()) {
    const auto is_key = [&wanted = key](std::string_view name) { return name == wanted; };
    if (!std::ranges::any_of(kNotes, is_key) && !std::ranges::any_of(known, is_key)) return key;
  }
  return {};
}

Expected<std::vector<Argument>> arguments_of(const Json& schema,
                                             const std::string& place,
                                             const ArgumentRules& rules,
                                             bool (*fits)(std::string_view key)) {
  const std::string other = other_keyword(schema, kOfObjects);
  if (!other.empty()) SLUICE_TRY_VOID(rules.refuse(other, place));
  std::vector<Argument> arguments;
  std::set<std::string_view> required = required_of(schema);
  const Json* properties = find_field(schema, "properties");
  if (properties != nullptr && properties->is_object()) {
    for (const auto& [key, value] : properties->items()) {
      if (fits(key)) {
        arguments.push_back({key, &value, required.erase(key) > 0});
      } else {
        SLUICE_TRY_VOID(rules.refuse(key, place + "/properties"));
      }
    }
  }
  // What is left is no argument.
  if (!required.empty()) SLUICE_TRY_VOID(rules.refuse("required", place));
  return arguments;
}

Expected<Json> with_definitions(Json value, const Json& schema, TagWriter& writer) {
  for (const char* name : {"$defs", "definitions"}) {
    const Json* definitions = find_field(schema, name);
    if (definitions == nullptr) continue;
    SLUICE_TRY_VOID(writer.spend(*definitions));
    value[name] = *definitions;
  }
  return value;
}

}  // namespace sluice
