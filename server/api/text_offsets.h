// SPDX-License-Identifier: Apache-2.0
// The positions of a prompt's tokens in its text. A tokenizer may change the text before it cuts
// it: put spaces in front, leave some out, recompose or lower characters, replace unknown ones. The
// tokens' bytes are therefore aligned with the text, and the parts that agree locate the rest.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// Returns for each token the number of characters of `text` that are complete before it; ascending,
// at most count_characters(text). A special token that `text` does not name has no width. The time
// is linear in text and tokens. Any thread.
std::vector<int64_t> text_offsets(const Tokenizer& tokenizer,
                                  std::span<const TokenId> tokens,
                                  std::string_view text);

// Counts bytes that are no UTF-8 like the U+FFFD that replaces them.
int64_t count_characters(std::string_view text);

}  // namespace sluice
