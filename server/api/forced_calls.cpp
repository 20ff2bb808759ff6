// SPDX-License-Identifier: Apache-2.0
#include "server/api/forced_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/tool_call_grammar.h"
#include "server/api/validation_context.h"
#include "server/json/json_fields.h"
#include "server/parse/output_parser.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::vector<CallableTool> callable_tools(const Json& tools, const ToolPlan& plan) {
  std::vector<CallableTool> callable;
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    CallableTool one = {.name = function["name"].get<std::string>()};
    const auto& allowed = plan.allowed;
    if (!allowed.empty() && std::ranges::count(allowed, one.name) == 0) continue;
    const Json* parameters = find_field(function, "parameters");
    if (parameters != nullptr) {
      one.parameters = parameters->dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    const Json* strict = find_field(function, "strict");
    one.is_strict = strict != nullptr && *strict == true;
    callable.push_back(std::move(one));
  }
  return callable;
}

// Where the calls may begin: at once, behind reasoning that the prompt has begun, or behind
// reasoning that the model may begin itself.
Expected<void> place_calls(const OutputFamilies& families,
                           const Tokenizer& tokenizer,
                           std::string_view prompt_tail,
                           CallRules& rules,
                           std::vector<TokenId>& begins_behind) {
  if (families.reasoning == nullptr) return {};
  std::optional<ReasoningForm> reasoning = reasoning_form(*families.reasoning, tokenizer);
  if (!reasoning) return {};
  const OutputParser parser(families.format, nullptr, prompt_tail, ParserOptions{});
  if (parser.in_reasoning()) {
    if (reasoning->end_token == kInvalidToken) {
      return make_error(ErrorCode::kUnsupported,
                        "tool_choice that forces a call is not supported behind reasoning of the "
                        "family '" +
                            std::string(name_of(*families.reasoning)) +
                            "', whose end is no token of this vocabulary.",
                        "tool_choice");
    }
    begins_behind = {reasoning->end_token};
    rules.newlines = reasoning->newlines;
    return {};
  }
  if (!ends_reasoning(*families.reasoning, prompt_tail)) rules.reasoning = std::move(reasoning);
  return {};
}

}  // namespace

Expected<GrammarSpec> forced_calls_grammar(const ValidationContext& context,
                                           const Json& body,
                                           const ToolPlan& plan,
                                           std::string_view prompt_tail) {
  const OutputFamilies& families = *context.families;
  const std::optional<CallForm> form = call_form(*families.calls, context.tokenizer);
  if (!form) {
    return make_error(ErrorCode::kUnsupported,
                      "tool_choice " + show_value(body["tool_choice"]) +
                          " is not supported for models that write calls as the family '" +
                          std::string(name_of(*families.calls)) + "'; use \"auto\" or \"none\".",
                      "tool_choice");
  }
  CallRules rules = {.allows_several = plan.may_call_several};
  std::vector<TokenId> begins_behind;
  SLUICE_TRY_VOID(place_calls(families, context.tokenizer, prompt_tail, rules, begins_behind));
  SLUICE_TRY(GrammarSpec spec,
             tool_call_grammar(*form, callable_tools(body["tools"], plan), rules));
  spec.begins_behind = std::move(begins_behind);
  return spec;
}

}  // namespace sluice
