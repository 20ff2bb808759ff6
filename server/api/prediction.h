// SPDX-License-Identifier: Apache-2.0
// OpenAI's `prediction`: what the client expects the answer to be. Drafts follow it, so that an
// answer which is so is computed faster; it changes none.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

class Tokenizer;

// The tokens of `prediction` in a request's body, cut to the `max_tokens` that an answer may have;
// none where it is absent. Its content is text: names of control tokens in it are text too.
// kInvalidArgument: it is not {"type": "content", "content": a string or parts of type text}.
Expected<std::vector<TokenId>> read_prediction(const nlohmann::ordered_json& body,
                                               const Tokenizer& tokenizer,
                                               int64_t max_tokens);

}  // namespace sluice
