// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/finite_values.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

bool has_finite_object(const Json& schema, const std::vector<bool>& finite) {
  const auto is_finite = [&](const Json& value) { return has_finite_value(value, finite); };
  const auto properties = schema.find("properties");
  if (const auto names = schema.find("required"); names != schema.end()) {
    const bool are_finite = std::ranges::all_of(*names, [&](const Json& name) {
      return is_finite(properties->at(name.get_ref<const std::string&>()));
    });
    if (!are_finite) return false;
  }
  const auto least = schema.value("minProperties", int64_t{0});
  if (least == 0) return true;
  if (properties != schema.end() && std::ranges::count_if(*properties, is_finite) >= least) {
    return true;
  }
  const auto patterns = schema.find("patternProperties");
  const auto others = schema.find("additionalProperties");
  return (patterns != schema.end() && std::ranges::any_of(*patterns, is_finite)) ||
         (others != schema.end() && is_finite(*others));
}

bool has_finite_array(const Json& schema, const std::vector<bool>& finite) {
  const auto min = schema.value("minItems", int64_t{0});
  const auto prefix = schema.find("prefixItems");
  const auto length = prefix == schema.end() ? int64_t{0} : static_cast<int64_t>(prefix->size());
  for (int64_t i = 0; i < std::min(min, length); ++i) {
    if (!has_finite_value((*prefix)[static_cast<size_t>(i)], finite)) return false;
  }
  return min <= length || has_finite_value(schema.at("items"), finite);
}

size_t definition_of(const Json& reference) {
  constexpr size_t kPrefix = std::string_view("#/$defs/d").size();
  return std::stoul(reference.get_ref<const std::string&>().substr(kPrefix));
}

// Notes that a definition refers to those that `schema`, a part of it, names.
void note_references(const Json& schema, size_t user, std::vector<std::vector<size_t>>& users) {
  if (!schema.is_object()) return;
  if (const auto found = schema.find("$ref"); found != schema.end()) {
    users[definition_of(*found)].push_back(user);
  }
  for (const char* const several : {"anyOf", "prefixItems", "properties", "patternProperties"}) {
    const auto found = schema.find(several);
    if (found == schema.end()) continue;
    for (const Json& inner : *found) note_references(inner, user, users);
  }
  for (const char* const one : {"additionalProperties", "items"}) {
    if (const auto found = schema.find(one); found != schema.end()) {
      note_references(*found, user, users);
    }
  }
}

}  // namespace

bool has_finite_value(const Json& schema, const std::vector<bool>& finite) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (const auto found = schema.find("$ref"); found != schema.end()) {
    return finite[definition_of(*found)];
  }
  if (const auto found = schema.find("anyOf"); found != schema.end()) {
    return std::ranges::any_of(
        *found, [&](const Json& branch) { return has_finite_value(branch, finite); });
  }
  const std::string type = schema.value("type", std::string());
  if (type == "object") return has_finite_object(schema, finite);
  return type != "array" || has_finite_array(schema, finite);
}

// Each definition is looked at again only after one that it refers to has been found finite.
std::vector<bool> finite_definitions(const std::vector<Json>& definitions) {
  std::vector<std::vector<size_t>> users(definitions.size());
  for (size_t i = 0; i < definitions.size(); ++i) note_references(definitions[i], i, users);
  std::vector<bool> finite(definitions.size(), false);
  std::vector<size_t> open(definitions.size());
  std::iota(open.begin(), open.end(), size_t{0});
  while (!open.empty()) {
    const size_t i = open.back();
    open.pop_back();
    if (finite[i] || !has_finite_value(definitions[i], finite)) continue;
    finite[i] = true;
    open.insert(open.end(), users[i].begin(), users[i].end());
  }
  return finite;
}

}  // namespace sluice
