// SPDX-License-Identifier: Apache-2.0
#include "server/tools/tool_schemas.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxSteps = 64;        // references and branches, nested; deeper ones allow all
constexpr int kMaxDepth = 8;         // of places in a parameter whose types are kept
constexpr size_t kMaxPlaces = 1000;  // of a tool, below its parameters

JsonTypes type_of_name(const std::string& name) {
  if (name == "string") return kJsonString;
  if (name == "integer") return kJsonInteger;
  if (name == "number") return kJsonInteger | kJsonNumber;
  if (name == "boolean") return kJsonBoolean;
  if (name == "null") return kJsonNull;
  if (name == "object") return kJsonObject;
  if (name == "array") return kJsonArray;
  return kJsonAny;
}

JsonTypes type_of_value(const Json& value) {
  if (value.is_string()) return kJsonString;
  if (value.is_number_integer()) return kJsonInteger;
  if (value.is_number()) return kJsonNumber;
  if (value.is_boolean()) return kJsonBoolean;
  if (value.is_null()) return kJsonNull;
  return value.is_object() ? kJsonObject : kJsonArray;
}

// Letters and digits alone, which clients leave as they are; other characters of other scripts
// stay.
std::string without_separators(std::string_view text) {
  std::string kept;
  for (const char c : text) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter || (c >= '0' && c <= '9') || static_cast<uint8_t>(c) >= 0x80) kept += c;
  }
  return kept;
}

bool are_digits(std::string_view text) {
  return text.find_first_not_of("0123456789") == std::string_view::npos;
}

using Places = std::unordered_map<std::string, JsonTypes>;

// Reads schemas of one document. `budget` bounds what all documents cost, whatever their
// references: the values that are looked at, and bytes of text at a lower rate.
struct SchemaReader {
  static constexpr size_t kBytesPerStep = 16;

  const Json& root;
  int64_t& budget;

  // False: nothing is left.
  bool spend(size_t steps) {
    budget = std::max<int64_t>(budget - static_cast<int64_t>(steps), -1);
    return budget >= 0;
  }

  // The schema that "#/..." names; null: there is none.
  const Json* find(const std::string& reference) {
    if (!reference.starts_with('#') || !spend(reference.size() / kBytesPerStep)) return nullptr;
    const Json* at = &root;
    for (size_t begin = 1; begin < reference.size();) {
      if (reference[begin] != '/') return nullptr;
      const size_t end = std::min(reference.find('/', begin + 1), reference.size());
      std::string key;
      for (size_t i = begin + 1; i < end; ++i) {
        const bool is_escape = reference[i] == '~' && i + 1 < end;
        if (is_escape) ++i;
        key += !is_escape ? reference[i] : reference[i] == '0' ? '~' : '/';
      }
      if (!at->is_object() || !spend(at->size()) || !at->contains(key)) return nullptr;
      at = &(*at)[key];
      begin = end;
    }
    return at;
  }

  // `is_union`: what any of the branches allows; else what all of them do.
  JsonTypes types_of_branches(const Json& branches, bool is_union, int steps) {
    if (!branches.is_array() || branches.empty() || !spend(branches.size())) return kJsonAny;
    JsonTypes types = is_union ? 0 : kJsonAny;
    for (const Json& branch : branches) {
      const JsonTypes one = types_of(branch, steps + 1);
      types = static_cast<JsonTypes>(is_union ? types | one : types & one);
    }
    return types;
  }

  JsonTypes types_of(const Json& schema, int steps) {
    if (!schema.is_object() || steps == kMaxSteps || !spend(1 + schema.size())) return kJsonAny;
    JsonTypes types = kJsonAny;
    for (const auto& [key, value] : schema.items()) {
      JsonTypes one = kJsonAny;
      if (key == "type" && value.is_string()) {
        one = type_of_name(value.get_ref<const std::string&>());
      } else if (key == "type" && value.is_array() && spend(value.size())) {
        one = 0;
        for (const Json& name : value) {
          one |= name.is_string() ? type_of_name(name.get_ref<const std::string&>()) : kJsonAny;
        }
      } else if (key == "const") {
        one = type_of_value(value);
      } else if (key == "enum" && value.is_array() && spend(value.size())) {
        one = 0;
        for (const Json& item : value) one |= type_of_value(item);
      } else if (key == "$ref" && value.is_string()) {
        const Json* target = find(value.get_ref<const std::string&>());
        if (target != nullptr) one = types_of(*target, steps + 1);
      } else if (key == "anyOf" || key == "oneOf") {
        one = types_of_branches(value, true, steps);
      } else if (key == "allOf") {
        one = types_of_branches(value, false, steps);
      }
      types &= one;
    }
    // What contradicts itself says nothing.
    return types == 0 ? kJsonAny : types;
  }

  // Keeps the types of a value's parts in the schema, from the first branch that defines them.
  void add_places(
      const Json& schema, const std::string& path, int depth, int steps, Places& places) {
    if (!schema.is_object() || depth == kMaxDepth || steps == kMaxSteps) return;
    if (!spend(1 + schema.size())) return;
    const auto add = [&](const std::string& step, const Json& one) {
      if (places.size() >= kMaxPlaces) return;
      if (!spend(1 + (path.size() + step.size()) / kBytesPerStep)) return;
      const std::string inner = path + ToolSchemas::kPathSeparator + step;
      if (places.try_emplace(inner, types_of(one, 0)).second) {
        add_places(one, inner, depth + 1, 0, places);
      }
    };
    for (const auto& [key, value] : schema.items()) {
      if (key == "properties" && value.is_object() && spend(value.size())) {
        for (const auto& [name, property] : value.items()) add(name, property);
      } else if (key == "items") {
        add("", value);
      } else if (key == "$ref" && value.is_string()) {
        const Json* target = find(value.get_ref<const std::string&>());
        if (target != nullptr) add_places(*target, path, depth, steps + 1, places);
      } else if ((key == "anyOf" || key == "oneOf" || key == "allOf") && value.is_array() &&
                 spend(value.size())) {
        for (const Json& branch : value) add_places(branch, path, depth, steps + 1, places);
      }
    }
  }
};

}  // namespace

void ToolSchemas::add(std::string name, const nlohmann::ordered_json& parameters) {
  Tool& tool = tools_[std::move(name)];
  tool = Tool();
  if (!parameters.is_object()) return;
  SchemaReader reader{parameters, budget_};
  if (const auto other = parameters.find("additionalProperties"); other != parameters.end()) {
    tool.other = reader.types_of(*other, 0);
  }
  const auto properties = parameters.find("properties");
  if (properties == parameters.end() || !properties->is_object()) return;
  Places places;
  for (const auto& [key, schema] : properties->items()) {
    tool.parameters[key] = reader.types_of(schema, 0);
    reader.add_places(schema, key, 0, 0, places);
  }
  tool.parameters.merge(places);
}

JsonTypes ToolSchemas::types_of(std::string_view name, std::string_view path) const {
  const auto tool = tools_.find(std::string(name));
  if (tool == tools_.end()) return kJsonAny;
  const auto found = tool->second.parameters.find(std::string(path));
  if (found != tool->second.parameters.end()) return found->second;
  return path.find(kPathSeparator) == std::string_view::npos ? tool->second.other : kJsonAny;
}

std::string_view ToolSchemas::meant_by(std::string_view id) const {
  constexpr std::string_view kPrefix = "functions";
  const std::string whole = without_separators(id);
  // An id has an index, which counts before a name that only looks like one with its index.
  for (const bool has_index : {true, false}) {
    std::string_view found;
    int num_found = 0;
    for (const auto& [name, tool] : tools_) {
      const std::string letters = without_separators(name);
      if (letters.empty()) continue;
      bool is_meant = false;
      for (const std::string& begin : {std::string(kPrefix) + letters, letters}) {
        if (!whole.starts_with(begin)) continue;
        const std::string_view index = std::string_view(whole).substr(begin.size());
        is_meant |= index.empty() != has_index && are_digits(index);
      }
      if (!is_meant) continue;
      found = name;
      ++num_found;
    }
    if (num_found > 0) return num_found == 1 ? found : std::string_view();
  }
  return {};
}

}  // namespace sluice
