// SPDX-License-Identifier: Apache-2.0
// Requests whose answer has to be calls of tools: `tool_choice` required, of one function, or of
// allowed tools that are required. Pure functions; any thread.
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

}  // namespace sluice
