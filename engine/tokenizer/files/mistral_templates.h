// SPDX-License-Identifier: Apache-2.0
// Chat templates of Mistral's models whose tokenizer is tekken.json: they write a conversation as
// mistral-common 1.13.1 does for the version that the file states.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// `version`: "v3", "v7", "v11" or "v13"; empty for others. What differs from mistral-common:
// - ids of calls are cut to their last nine characters (up to v11), as vLLM does, and any others
//   are accepted; a call without one has no id, and its result an empty one;
// - messages may come in any order, v3 writes text beside calls in front of them, and an answer
//   without text and calls is its end alone;
// - reasoning is left out before v13, which has no place for it.
std::string mistral_template(std::string_view version);

// Returns the template for the version of a tekken.json. Empty: it has none of those, or the
// tokenizer lacks control tokens that the template writes. kDataLoss: the file has another form.
Expected<std::string> template_of_tekken(std::string_view file, const Tokenizer& tokenizer);

}  // namespace sluice
