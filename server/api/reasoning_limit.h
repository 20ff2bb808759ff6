// SPDX-License-Identifier: Apache-2.0
// `thinking_token_budget`: how many tokens of a chat's answer may be reasoning. Pure function; any
// thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "engine/core/sampling_params.h"
#include "engine/core/status.h"
#include "server/api/validation_context.h"

namespace sluice {

// Unset where `body` names none, or the prompt with this tail (as of OutputParser) has ended the
// reasoning of its answer. kUnsupported: the model's way to reason is not known, or its end is no
// token of the vocabulary.
Expected<ReasoningLimit> read_reasoning_limit(const ValidationContext& context,
                                              const nlohmann::ordered_json& body,
                                              std::string_view prompt_tail);

}  // namespace sluice
