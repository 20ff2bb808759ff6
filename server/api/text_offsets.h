// SPDX-License-Identifier: Apache-2.0
// Where the tokens of a prompt begin in its text. A tokenizer may have changed the text before it
// cut it: put spaces in front, left some out, recomposed or lowered characters, replaced what it
// does not know. The tokens' bytes are therefore laid along the text, and what agrees on both sides
// says where the rest belongs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// Of each token the number of characters of `text` that are complete before it; ascending, at most
// count_characters(text). A special token that `text` does not name has no width. The time is
// linear in text and tokens. Any thread.
std::vector<int64_t> text_offsets(const Tokenizer& tokenizer,
                                  std::span<const TokenId> tokens,
                                  std::string_view text);

// Bytes that are no UTF-8 count as the U+FFFD that they are shown as.
int64_t count_characters(std::string_view text);

}  // namespace sluice
