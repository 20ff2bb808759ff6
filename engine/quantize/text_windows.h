// SPDX-License-Identifier: Apache-2.0
// A text as windows of tokens, the first of which begins it and none of which knows the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

inline constexpr int32_t kTextWindow = 512;  // tokens

// By the checkpoint's tokenizer, with what it puts in front of texts in each window; at most
// `max_tokens` in all, whole windows but for the last. kInvalidArgument: fewer than 2 tokens.
Expected<std::vector<std::vector<TokenId>>> text_windows(const Checkpoint& checkpoint,
                                                         const std::string& text,
                                                         int64_t max_tokens);

}  // namespace sluice
