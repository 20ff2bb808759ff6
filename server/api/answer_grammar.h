// SPDX-License-Identifier: Apache-2.0
// The grammar of a chat's answer: which part of it is bound, behind reasoning, and to what. Answers
// that have to be calls (`tool_choice` required, of one function, or of allowed tools that are
// required), answers that may be text and hold calls of tools with `strict`, and those of a format.
// `prompt_tail`: as of OutputParser, says whether the answer begins in reasoning. Pure functions;
// any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"
#include "server/api/tools.h"

namespace sluice {

struct ValidationContext;

// What the answer must be. `plan`: of the same body, and forces a call. kUnsupported: a strict
// schema that the family's form cannot keep.
Expected<GrammarSpec> forced_calls_grammar(const ValidationContext& context,
                                           const nlohmann::ordered_json& body,
                                           const ToolPlan& plan,
                                           std::string_view prompt_tail);

// `format`, which may be of any kind or none, behind the answer's reasoning. Where the model may
// begin reasoning itself, JSON alone leaves room for it. kUnsupported: the end of reasoning that
// the prompt has begun is no token, and the format no JSON.
Expected<GrammarSpec> place_format(const ValidationContext& context,
                                   std::string_view prompt_tail,
                                   GrammarSpec format);

// What the answer must be where it may hold calls (`plan` parses them and forces none). `format`:
// as the request says it of an answer without calls, of any kind. An answer of JSON may be calls in
// its place; without a format, calls in a text are bound if
// one of the tools that may be called is strict. place_format() otherwise. kUnsupported: calls of
// the family begin without a marker, so that a strict tool cannot be kept.
Expected<GrammarSpec> free_calls_grammar(const ValidationContext& context,
                                         const nlohmann::ordered_json& body,
                                         const ToolPlan& plan,
                                         std::string_view prompt_tail,
                                         GrammarSpec format);

}  // namespace sluice
