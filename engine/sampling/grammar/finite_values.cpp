// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/finite_values.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

bool has_finite_object(const Json& schema, const std::vector<bool>& finite) {
  if (schema.contains("required")) {
    return std::ranges::all_of(schema["required"], [&](const Json& name) {
      return has_finite_value(schema["properties"][name.get<std::string>()], finite);
    });
  }
  if (schema.value("minProperties", 0) == 0) return true;
  const auto has_finite = [&](const Json& value) { return has_finite_value(value, finite); };
  return (schema.contains("properties") && std::ranges::any_of(schema["properties"], has_finite)) ||
         (schema.contains("patternProperties") &&
          std::ranges::any_of(schema["patternProperties"], has_finite)) ||
         has_finite(schema.value("additionalProperties", Json(false)));
}

bool has_finite_array(const Json& schema, const std::vector<bool>& finite) {
  const auto min = schema.value("minItems", int64_t{0});
  const Json prefix = schema.value("prefixItems", Json::array());
  const auto length = static_cast<int64_t>(prefix.size());
  for (int64_t i = 0; i < std::min(min, length); ++i) {
    if (!has_finite_value(prefix[static_cast<size_t>(i)], finite)) return false;
  }
  return min <= length || has_finite_value(schema["items"], finite);
}

}  // namespace

bool has_finite_value(const Json& schema, const std::vector<bool>& finite) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (const auto found = schema.find("$ref"); found != schema.end()) {
    constexpr size_t kPrefix = std::string_view("#/$defs/d").size();
    return finite[std::stoul(found->get<std::string>().substr(kPrefix))];
  }
  if (const auto found = schema.find("anyOf"); found != schema.end()) {
    return std::ranges::any_of(
        *found, [&](const Json& branch) { return has_finite_value(branch, finite); });
  }
  const std::string type = schema.value("type", std::string());
  if (type == "object") return has_finite_object(schema, finite);
  return type != "array" || has_finite_array(schema, finite);
}

std::vector<bool> finite_definitions(const std::vector<Json>& definitions) {
  std::vector<bool> finite(definitions.size(), false);
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    // What a definition needs is mostly written after it.
    for (size_t i = definitions.size(); i-- > 0;) {
      if (finite[i] || !has_finite_value(definitions[i], finite)) continue;
      finite[i] = true;
      has_changed = true;
    }
  }
  return finite;
}

}  // namespace sluice
