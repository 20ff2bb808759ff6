// SPDX-License-Identifier: Apache-2.0
// Schemas of objects for families that write arguments in another form than JSON: the keywords that
// such a form keeps, and the refusal by name of those that it cannot. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "server/tools/tag_writer.h"

namespace sluice {

struct ArgumentRules {
  std::string tool;
  bool is_strict = false;  // see CallableTool::is_strict

  // kUnsupported, with keyword and JSON pointer; no error if the schema need not be kept exactly.
  [[nodiscard]] Expected<void> refuse(const std::string& keyword, const std::string& place) const;

  // Returns the name that errors of the grammar give to the schema of the argument `key`.
  [[nodiscard]] std::string owner_of(const std::string& key) const;
};

// Returns the first binding keyword that is not in `known`; empty: there is none.
std::string other_keyword(const nlohmann::ordered_json& schema,
                          std::span<const std::string_view> known);

struct Argument {
  std::string key;
  const nlohmann::ordered_json* schema;  // the value's
  bool is_required;
};

// Returns the properties of `schema`, an object's, in its order; their schemas are parts of it.
// Unsuitable keys, and other keywords of the object, are refused, or left out.
Expected<std::vector<Argument>> arguments_of(const nlohmann::ordered_json& schema,
                                             const std::string& place,
                                             const ArgumentRules& rules,
                                             bool (*fits)(std::string_view key));

// Returns `value`, a part of `schema`, with a copy of the definitions that its references name.
// kInvalidArgument: see TagWriter::spend().
Expected<nlohmann::ordered_json> with_definitions(nlohmann::ordered_json value,
                                                  const nlohmann::ordered_json& schema,
                                                  TagWriter& writer);

}  // namespace sluice
