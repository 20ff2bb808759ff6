// SPDX-License-Identifier: Apache-2.0
// Schemas of objects for families that write arguments otherwise than as JSON: what of a schema
// such a form keeps, and what is refused by name because it cannot. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

struct ArgumentRules {
  std::string tool;
  bool is_strict = false;  // as CallableTool::is_strict

  // kUnsupported, with keyword and JSON pointer; nothing where the schema need not be kept exactly.
  [[nodiscard]] Expected<void> refuse(const std::string& keyword, const std::string& place) const;

  // What errors of the grammar call the schema of the argument `key`.
  [[nodiscard]] std::string owner_of(const std::string& key) const;
};

// The first keyword that binds and is none of `known`; empty: there is none.
std::string other_keyword(const nlohmann::ordered_json& schema,
                          std::span<const std::string_view> known);

struct Argument {
  std::string key;
  const nlohmann::ordered_json* schema;  // of the value
  bool is_required;
};

// The properties of `schema`, an object's, in its order; their schemas are parts of it. Keys that
// do not fit, and what else the schema says of the object, are refused, or left out.
Expected<std::vector<Argument>> arguments_of(const nlohmann::ordered_json& schema,
                                             const std::string& place,
                                             const ArgumentRules& rules,
                                             bool (*fits)(std::string_view key));

// `value`, a part of `schema`, with the definitions into which its references lead.
nlohmann::ordered_json with_definitions(nlohmann::ordered_json value,
                                        const nlohmann::ordered_json& schema);

}  // namespace sluice
