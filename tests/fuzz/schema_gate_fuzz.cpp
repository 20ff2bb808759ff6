// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a JSON schema: it is refused in one line, or rewritten as a schema that is
// taken again and has no keyword that the grammar library would leave out. Bounded work either way.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/sampling/grammar/schema_gate.h"
#include "tests/fuzz/target.h"

namespace {

using Json = nlohmann::ordered_json;

void require(bool holds) {
  if (!holds) std::abort();
}

// Schemas only: names of properties and values of enums may be anything.
void require_known(const Json& schema) {
  static constexpr std::array kKnown = {"type",
                                        "enum",
                                        "anyOf",
                                        "$ref",
                                        "$defs",
                                        "items",
                                        "minItems",
                                        "maxItems",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "pattern",
                                        "prefixItems",
                                        "required",
                                        "format",
                                        "exclusiveMaximum",
                                        "properties",
                                        "additionalProperties",
                                        "patternProperties",
                                        "multipleOf",
                                        "minProperties",
                                        "maxProperties"};
  if (schema.is_boolean()) return;
  require(schema.is_object());
  for (const auto& [name, value] : schema.items()) {
    require(std::ranges::find(kKnown, name) != kKnown.end());
    if (name == "items" || name == "additionalProperties") require_known(value);
    if (name == "anyOf" || name == "prefixItems") {
      for (const Json& part : value) require_known(part);
    }
    if (name == "$defs" || name == "properties" || name == "patternProperties") {
      for (const auto& part : value.items()) require_known(part.value());
    }
  }
}

}  // namespace

static int schema_gate_input(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool is_best_effort = (data[0] & 1) != 0;
  const auto gated = sluice::gate_schema(text, is_best_effort, {});
  if (!gated) {
    require(!gated.error().message.empty());
    return 0;
  }
  const Json schema = Json::parse(*gated, nullptr, false);
  require(!schema.is_discarded());
  require_known(schema);
  return 0;
}

const sluice::fuzz::Target schema_gate_target("schema_gate_fuzz", schema_gate_input);
