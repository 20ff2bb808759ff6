// SPDX-License-Identifier: Apache-2.0
#include "server/tools/tool_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/config.h"
#include "server/json/json_fields.h"
#include "server/prompt/tool_list.h"
#include "server/prompt/validation_context.h"
#include "server/tools/output_families.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

enum class Choice : uint8_t { kNone, kAuto, kForced };

struct ReadChoice {
  Choice choice = Choice::kNone;
  std::vector<std::string> names = {};  // of the tools that may be called; empty: all
  bool is_named = false;                // one function
};

using Names = std::set<std::string_view>;

Names names_of(const Json& tools) {
  Names names;
  for (const Json& tool : tools) {
    names.insert(tool["function"]["name"].get_ref<const std::string&>());
  }
  return names;
}

Expected<std::string> chosen_name(const Json& given,
                                  const Names& tools,
                                  const std::string& place) {
  SLUICE_TRY(const Json* function, function_of(given, place, "tool_choice"));
  const auto name = (*function)["name"].get<std::string>();
  if (!tools.contains(name)) {
    return invalid(place + " names `" + name + "`, which is none of the tools.", "tool_choice");
  }
  return name;
}

Expected<ReadChoice> read_allowed(const Json& given, const Names& tools) {
  const std::string place = "tool_choice.allowed_tools";
  const Json* allowed = find_field(given, "allowed_tools");
  const Json* mode =
      allowed != nullptr && allowed->is_object() ? find_field(*allowed, "mode") : nullptr;
  const Json* list = mode != nullptr ? find_field(*allowed, "tools") : nullptr;
  if (list == nullptr || !list->is_array() || list->empty()) {
    return invalid(place + " must have a mode and a list of tools that is not empty.",
                   "tool_choice");
  }
  if (list->size() > tools.size()) {
    return invalid(place + ".tools may have at most " + std::to_string(tools.size()) +
                       " entries, one for each tool, got " + std::to_string(list->size()) + ".",
                   "tool_choice");
  }
  ReadChoice read;
  for (size_t i = 0; i < list->size(); ++i) {
    SLUICE_TRY(std::string name,
               chosen_name((*list)[i], tools, place + ".tools[" + std::to_string(i) + "]"));
    read.names.push_back(std::move(name));
  }
  if (*mode != "auto" && *mode != "required") {
    return invalid(place + ".mode must be \"auto\" or \"required\".", "tool_choice");
  }
  read.choice = *mode == "auto" ? Choice::kAuto : Choice::kForced;
  return read;
}

// `tools`: null where there are none.
Expected<ReadChoice> read_choice(const Json& body, const Json* tools) {
  const Json* given = find_field(body, "tool_choice");
  if (given == nullptr) return ReadChoice{tools == nullptr ? Choice::kNone : Choice::kAuto};
  if (*given == "none") return ReadChoice{};
  if (*given == "auto") return ReadChoice{tools == nullptr ? Choice::kNone : Choice::kAuto};
  const bool is_object = given->is_object();
  if (!is_object && *given != "required") {
    return invalid(
        "tool_choice must be none, auto, required or an object, got " + show_value(*given) + ".",
        "tool_choice");
  }
  if (tools == nullptr) return invalid("tool_choice needs tools.", "tool_choice");
  if (!is_object) return ReadChoice{Choice::kForced};
  const Names names = names_of(*tools);
  const Json* type = find_field(*given, "type");
  if (type != nullptr && *type == "allowed_tools") return read_allowed(*given, names);
  SLUICE_TRY(std::string name, chosen_name(*given, names, "tool_choice"));
  return ReadChoice{.choice = Choice::kForced, .names = {std::move(name)}, .is_named = true};
}

bool is_strict(const Json& tool) {
  const Json* strict = find_field(tool["function"], "strict");
  return strict != nullptr && *strict == true;
}

int64_t count_calls(const Json& messages) {
  int64_t count = 0;
  for (const Json& message : messages) {
    const Json* calls = find_field(message, "tool_calls");
    if (calls != nullptr) count += static_cast<int64_t>(calls->size());
  }
  return count;
}

}  // namespace

Expected<ToolPlan> read_tool_plan(const ValidationContext& context, const Json& body) {
  ToolPlan plan;
  const Json* tools = find_tools(body);
  SLUICE_TRY(ReadChoice read, read_choice(body, tools));
  SLUICE_TRY(plan.may_call_several, read_bool(body, "parallel_tool_calls", true));
  if (tools == nullptr) return plan;
  auto schemas = std::make_shared<ToolSchemas>();
  for (const Json& tool : *tools) {
    const Json& function = tool["function"];
    const Json* parameters = find_field(function, "parameters");
    schemas->add(function["name"].get<std::string>(), parameters != nullptr ? *parameters : Json());
  }
  plan.schemas = std::move(schemas);
  if (read.choice == Choice::kNone) return plan;
  const bool is_forced = read.choice == Choice::kForced;
  const OutputFamilies* families = context.families;
  if (families == nullptr || !families->reads_calls) {
    if (!is_forced && std::ranges::any_of(*tools, is_strict)) {
      return unsupported("strict tools are switched off by --tool-call-parser none.", "tools");
    }
    if (!is_forced) return plan;
    return unsupported("tool_choice " + show_value(body["tool_choice"]) +
                           " is switched off by --tool-call-parser none.",
                       "tool_choice");
  }
  if (!is_forced && !context.config.enable_auto_tool_choice) {
    return unsupported("tool_choice \"auto\" is switched off by --no-enable-auto-tool-choice.",
                       "tool_choice");
  }
  if (families->calls == nullptr) {
    return unsupported(
        "How the model writes calls of tools was not recognised; start the server with "
        "--tool-call-parser.",
        "tools");
  }
  plan.parses_calls = true;
  plan.must_call = is_forced;
  plan.is_named = read.is_named;
  if (read.is_named) plan.may_call_several = false;
  plan.allowed = std::move(read.names);
  plan.id_rule = id_rule_of(*families->calls);
  if (const Json* messages = find_field(body, "messages")) {
    plan.num_earlier_calls = count_calls(*messages);
  }
  return plan;
}

}  // namespace sluice
