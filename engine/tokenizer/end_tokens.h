// SPDX-License-Identifier: Apache-2.0
// Which tokens end a generation: files name eos and perhaps eot, but chat models also stop at
// control tokens known by their names only.
#pragma once

#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// Ascending, without repeats.
std::vector<TokenId> find_end_tokens(const Vocabulary& vocabulary, const Tokenizer& tokenizer);

}  // namespace sluice
