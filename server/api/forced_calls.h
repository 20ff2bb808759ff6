// SPDX-License-Identifier: Apache-2.0
// Grammars of answers with calls: of those that have to be calls (`tool_choice` required, of one
// function, or of allowed tools that are required), and of those that may be text and hold calls of
// tools with `strict`. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"
#include "server/api/tools.h"

namespace sluice {

struct ValidationContext;

// What the answer must be. `plan`: of the same body, and forces a call; `prompt_tail`: as of
// OutputParser, says whether the answer begins in reasoning. kUnsupported: the family of models
// writes calls in a form that no grammar here has, or ends reasoning with no token of its own.
Expected<GrammarSpec> forced_calls_grammar(const ValidationContext& context,
                                           const nlohmann::ordered_json& body,
                                           const ToolPlan& plan,
                                           std::string_view prompt_tail);

// What the answer must be where it may hold calls (`plan` parses them and forces none). `format`:
// as the request says it of an answer without calls, of any kind. An answer of JSON may be calls in
// its place, as far as the family's form is known; without a format, calls in a text are bound if
// one of the tools that may be called is strict. `format` itself otherwise. kUnsupported: calls of
// the family begin without a marker, so that a strict tool cannot be kept; as
// forced_calls_grammar().
Expected<GrammarSpec> free_calls_grammar(const ValidationContext& context,
                                         const nlohmann::ordered_json& body,
                                         const ToolPlan& plan,
                                         std::string_view prompt_tail,
                                         GrammarSpec format);

}  // namespace sluice
