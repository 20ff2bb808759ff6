// SPDX-License-Identifier: Apache-2.0
// Values in the form of calls of Gemma's models: `{a:<|"|>text<|"|>,b:[1,2],c:{d:true}}`. One
// instance for a tool, one thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "server/tools/argument_schema.h"
#include "server/tools/tag_writer.h"

namespace sluice {

class GemmaLiterals {
 public:
  using Json = nlohmann::ordered_json;

  // `root`: the schema that references point into. All arguments outlive the instance.
  GemmaLiterals(const CallPieces& quote,
                const ArgumentRules& rules,
                const Json& root,
                TagWriter& writer)
      : quote_(quote), rules_(rules), root_(root), writer_(writer) {}

  // Appends the properties of `schema`, an object's at `place`, without the braces.
  Expected<void> add_members(const Json& schema, const std::string& place, Json& elements);

 private:
  Expected<void> add_value(const Json& schema, const std::string& place, Json& elements);
  Expected<void> add_typed(const Json& schema,
                           const Json& type,
                           const std::string& place,
                           Json& elements);
  [[nodiscard]] Expected<int64_t> count_of(const Json& schema,
                                           const char* keyword,
                                           int64_t fallback,
                                           const std::string& place) const;
  Expected<void> add_array(const Json& schema, const std::string& place, Json& elements);
  Expected<void> add_object(const Json& schema, const std::string& place, Json& elements);
  Expected<void> add_alternatives(const Json& schemas, const std::string& place, Json& elements);
  Expected<void> add_listed(const Json& values, const std::string& place, Json& elements);
  void add_string(Json& elements);
  void add_literal(const Json& value, Json& elements);
  Expected<void> add_anything(Json& elements);
  void add_any(int depth, Json& elements);
  void add_any_list(int depth, Json& elements);
  void add_any_object(int depth, Json& elements);
  [[nodiscard]] bool can_be_written(const Json& value) const;
  [[nodiscard]] const Json* target_of(const Json& schema) const;

  const CallPieces& quote_;
  const ArgumentRules& rules_;
  const Json& root_;
  TagWriter& writer_;
  int depth_ = 0;  // number of values around the current value
};

}  // namespace sluice
