// SPDX-License-Identifier: Apache-2.0
// `thinking_token_budget`: the number of a chat answer's tokens that may be reasoning. Pure
// function; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "engine/core/sampling_params.h"
#include "engine/core/status.h"
#include "server/prompt/validation_context.h"

namespace sluice {

// Unset if `body` names none, or if the prompt with this tail (see OutputParser) has ended the
// answer's reasoning. kUnsupported: the model's form of reasoning is unknown, or its end is no
// token of the vocabulary.
Expected<ReasoningLimit> read_reasoning_limit(const ValidationContext& context,
                                              const nlohmann::ordered_json& body,
                                              std::string_view prompt_tail);

}  // namespace sluice
