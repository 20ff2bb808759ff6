// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/structural_tag_gate.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/sampling/grammar/schema_gate.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Expected<void> gate_inside(Json& value,
                           bool is_best_effort,
                           const SchemaLimits& limits,
                           int32_t depth) {
  if (depth > limits.max_depth) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the structural tag is deeper than " + std::to_string(limits.max_depth));
  }
  if (!value.is_structured()) return {};
  for (auto item = value.begin(); item != value.end(); ++item) {
    if (!value.is_object() || item.key() != "json_schema") {
      SLUICE_TRY_VOID(gate_inside(*item, is_best_effort, limits, depth + 1));
      continue;
    }
    SLUICE_TRY(const std::string gated, gate_schema(item->dump(), is_best_effort, limits));
    *item = Json::parse(gated);
  }
  return {};
}

}  // namespace

Expected<std::string> gate_structural_tag(std::string_view tag,
                                          bool is_best_effort,
                                          const SchemaLimits& limits) {
  Json root = Json::parse(tag, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object() || !root.contains("format")) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a structural tag must be a JSON object with a `format`");
  }
  SLUICE_TRY_VOID(gate_inside(root, is_best_effort, limits, 0));
  return root.dump();
}

}  // namespace sluice
