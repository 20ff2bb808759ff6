// SPDX-License-Identifier: Apache-2.0
// Splits a text into windows of tokens, each without the context of the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

inline constexpr int32_t kTextWindow = 512;  // tokens

// Uses the checkpoint's tokenizer and its leading tokens in each window; at most `max_tokens` in
// all, and only the last window may be shorter. kInvalidArgument: fewer than 2 tokens.
Expected<std::vector<std::vector<TokenId>>> text_windows(const Checkpoint& checkpoint,
                                                         const std::string& text,
                                                         int64_t max_tokens);

}  // namespace sluice
