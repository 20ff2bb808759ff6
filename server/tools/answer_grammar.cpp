// SPDX-License-Identifier: Apache-2.0
#include "server/tools/answer_grammar.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/json/json_fields.h"
#include "server/prompt/validation_context.h"
#include "server/tools/output_families.h"
#include "server/tools/output_parser.h"
#include "server/tools/tool_call_grammar.h"

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

struct Place {
  BeforeAnswer before;
  std::vector<TokenId> begins_after;
};

// Where the constrained part of an answer begins: at once, after reasoning that the prompt has
// begun, or after reasoning that the model may begin itself.
Place place_of(const ValidationContext& context, std::string_view prompt_tail) {
  Place place;
  const OutputFamilies* families = context.families;
  if (families == nullptr || families->reasoning == nullptr) return place;
  std::optional<ReasoningForm> reasoning = reasoning_form(*families->reasoning, context.tokenizer);
  if (!reasoning) return place;
  const OutputParser parser(families->format, nullptr, prompt_tail, ParserOptions{});
  if (!parser.in_reasoning()) {
    if (!ends_reasoning(*families->reasoning, prompt_tail)) {
      place.before.reasoning = std::move(reasoning);
    }
  } else if (reasoning->end_token != kInvalidToken) {
    place.begins_after = {reasoning->end_token};
    place.before.newlines = reasoning->newlines;
  } else {
    place.before.in_reasoning = true;
    place.before.reasoning = std::move(reasoning);
  }
  return place;
}

bool is_json(const GrammarSpec& format) {
  return format.allows_whitespace &&
         (format.kind == GrammarKind::kJsonSchema || format.kind == GrammarKind::kAnyObject);
}

Expected<GrammarSpec> calls_grammar(const ValidationContext& context,
                                    const CallForm& form,
                                    std::span<const CallableTool> tools,
                                    std::string_view prompt_tail,
                                    CallRules rules) {
  Place place = place_of(context, prompt_tail);
  rules.before = std::move(place.before);
  SLUICE_TRY(GrammarSpec spec, tool_call_grammar(form, tools, rules));
  spec.begins_after = std::move(place.begins_after);
  return spec;
}

}  // namespace

Expected<GrammarSpec> forced_calls_grammar(const ValidationContext& context,
                                           const Json& body,
                                           const ToolPlan& plan,
                                           std::string_view prompt_tail) {
  const CallFamily& family = *context.families->calls;
  return calls_grammar(context,
                       call_form(family, context.tokenizer),
                       callable_tools(body["tools"], plan),
                       prompt_tail,
                       {.allows_several = plan.may_call_several});
}

Expected<GrammarSpec> place_format(const ValidationContext& context,
                                   std::string_view prompt_tail,
                                   GrammarSpec format) {
  Place place = place_of(context, prompt_tail);
  const bool begins_at_once =
      !place.before.reasoning && place.before.newlines.empty() && place.begins_after.empty();
  if (!format.is_set() || begins_at_once) return format;
  if (is_json(format)) {
    format = format_grammar(format, place.before);
  } else if (place.before.in_reasoning) {
    return make_error(ErrorCode::kUnsupported,
                      format.param +
                          " of this kind is not supported behind reasoning of the "
                          "family '" +
                          std::string(name_of(*context.families->reasoning)) +
                          "', whose end is no token of this vocabulary.",
                      format.param);
  }
  format.begins_after = std::move(place.begins_after);
  return format;
}

Expected<GrammarSpec> free_calls_grammar(const ValidationContext& context,
                                         const Json& body,
                                         const ToolPlan& plan,
                                         std::string_view prompt_tail,
                                         GrammarSpec format) {
  const CallFamily& family = *context.families->calls;
  const std::vector<CallableTool> tools = callable_tools(body["tools"], plan);
  const CallForm form = call_form(family, context.tokenizer);
  CallRules rules = {.allows_several = plan.may_call_several};
  if (format.is_set()) {
    if (!is_json(format)) return place_format(context, prompt_tail, std::move(format));
    rules.beside = BesideCalls::kFormat;
    rules.format = std::move(format);
    return calls_grammar(context, form, tools, prompt_tail, std::move(rules));
  }
  const auto strict = std::ranges::find_if(tools, &CallableTool::is_strict);
  if (strict == tools.end()) return format;
  if (!form.has_marker()) {
    return make_error(ErrorCode::kUnsupported,
                      "tools: `strict` of '" + strict->name +
                          "' is not supported with tool_choice \"auto\" for models that write "
                          "calls as the family '" +
                          std::string(name_of(family)) + "'; leave it out, or use \"required\".",
                      "tools");
  }
  rules.beside = BesideCalls::kText;
  return calls_grammar(context, form, tools, prompt_tail, std::move(rules));
}

}  // namespace sluice
