// SPDX-License-Identifier: Apache-2.0
// OpenAI's `prediction`: the answer that the client expects. Drafts follow it, so that an answer
// like it is computed faster; it never changes an answer.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

class Tokenizer;

// Returns the tokens of `prediction` in a request's body, at most `max_tokens`, the limit of the
// answer; none if it is absent. Its content is text: names of control tokens in it are text too.
// kInvalidArgument: it is not {"type": "content", "content": a string or parts of type text}.
Expected<std::vector<TokenId>> read_prediction(const nlohmann::ordered_json& body,
                                               const Tokenizer& tokenizer,
                                               int64_t max_tokens);

}  // namespace sluice
