// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/structural_tag_gate.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/sampling/grammar/exact_regex.h"
#include "engine/sampling/grammar/schema_gate.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBestEffort = "is_best_effort";
constexpr const char* kOwner = "owner";

// The members beside a schema that are for the gate alone.
struct Beside {
  bool is_best_effort;
  std::string owner;
};

Beside take_beside(Json& format, bool is_best_effort) {
  Beside beside = {is_best_effort, {}};
  if (const auto found = format.find(kBestEffort); found != format.end() && found->is_boolean()) {
    beside.is_best_effort = found->get<bool>();
  }
  if (const auto found = format.find(kOwner); found != format.end() && found->is_string()) {
    beside.owner = found->get<std::string>();
  }
  format.erase(kBestEffort);
  format.erase(kOwner);
  return beside;
}

Expected<std::string> gate_one(const Json& schema,
                               const Beside& beside,
                               const SchemaLimits& limits,
                               std::vector<LeftOutKeyword>* left_out) {
  Expected<std::string> gated = gate_schema(schema.dump(), beside.is_best_effort, limits, left_out);
  if (!gated && !beside.owner.empty()) gated.error().message += " of " + beside.owner;
  return gated;
}

Expected<void> gate_inside(Json& value,
                           bool is_best_effort,
                           const SchemaLimits& limits,
                           std::vector<LeftOutKeyword>* left_out,
                           int32_t depth) {
  if (depth > limits.max_depth) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the structural tag is deeper than " + std::to_string(limits.max_depth));
  }
  if (!value.is_structured()) return {};
  Beside beside = {is_best_effort, {}};
  if (value.is_object() && value.contains("json_schema")) {
    beside = take_beside(value, is_best_effort);
  }
  if (value.is_object() && value.value("type", Json()) == "regex" && value.contains("pattern") &&
      value["pattern"].is_string()) {
    SLUICE_TRY(value["pattern"], gate_regex(value["pattern"].get<std::string>(), limits));
  }
  if (value.is_object() && value.value("type", Json()) == "grammar" && value.contains("grammar") &&
      value["grammar"].is_string()) {
    value["grammar"] = exact_ebnf(value["grammar"].get<std::string>());
  }
  for (auto item = value.begin(); item != value.end(); ++item) {
    if (!value.is_object() || item.key() != "json_schema") {
      SLUICE_TRY_VOID(gate_inside(*item, is_best_effort, limits, left_out, depth + 1));
      continue;
    }
    SLUICE_TRY(const std::string gated, gate_one(*item, beside, limits, left_out));
    *item = Json::parse(gated);
  }
  return {};
}

}  // namespace

Expected<std::string> gate_structural_tag(std::string_view tag,
                                          bool is_best_effort,
                                          const SchemaLimits& limits,
                                          std::vector<LeftOutKeyword>* left_out) {
  Json root = Json::parse(tag, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object() || !root.contains("format")) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a structural tag must be a JSON object with a `format`");
  }
  SLUICE_TRY_VOID(gate_inside(root, is_best_effort, limits, left_out, 0));
  return root.dump();
}

}  // namespace sluice
