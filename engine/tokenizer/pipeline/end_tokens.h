// SPDX-License-Identifier: Apache-2.0
// Finds the tokens that end a generation: files name eos and perhaps eot and eom, but chat models
// also stop at control tokens that are known only by name.
#pragma once

#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// Returns them ascending, without repeats.
std::vector<TokenId> find_end_tokens(const Vocabulary& vocabulary, const Tokenizer& tokenizer);

}  // namespace sluice
