// SPDX-License-Identifier: Apache-2.0
// The grammar of a chat's answer: which part of it, after reasoning, is constrained, and to what.
// Three kinds: answers that must be calls (`tool_choice` required, of one function, or of allowed
// tools that are required), text that may contain calls of tools with `strict`, and answers of a
// format. `prompt_tail`: see OutputParser, determines whether the answer begins in reasoning. Pure
// functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"
#include "server/tools/tool_plan.h"

namespace sluice {

struct ValidationContext;

// Returns the grammar of an answer that must be calls. `plan`: read from `body`, and forces a call.
// kUnsupported: a strict schema that the family's form cannot keep.
Expected<GrammarSpec> forced_calls_grammar(const ValidationContext& context,
                                           const nlohmann::ordered_json& body,
                                           const ToolPlan& plan,
                                           std::string_view prompt_tail);

// Returns `format`, which may be of any kind or none, after the answer's reasoning. If the model
// may begin reasoning itself, only JSON formats allow it. kUnsupported: no token ends the reasoning
// that the prompt has begun, and the format is not JSON.
Expected<GrammarSpec> place_format(const ValidationContext& context,
                                   std::string_view prompt_tail,
                                   GrammarSpec format);

// Returns the grammar of an answer that may hold calls (`plan` parses them and forces none).
// `format`, of any kind: the request's, for an answer without calls. An answer of JSON may be calls
// instead; without a format, calls in a text are constrained if a tool that may be called is
// strict. Otherwise place_format(). kUnsupported: the family's calls begin without a marker, so
// that a strict tool cannot be kept.
Expected<GrammarSpec> free_calls_grammar(const ValidationContext& context,
                                         const nlohmann::ordered_json& body,
                                         const ToolPlan& plan,
                                         std::string_view prompt_tail,
                                         GrammarSpec format);

}  // namespace sluice
