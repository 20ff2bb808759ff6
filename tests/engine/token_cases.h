// SPDX-License-Identifier: Apache-2.0
// Texts with their token ids, written by the scripts in tests/golden/tokenizer: one line "name mode
// hex id id ..." each, with mode p where special tokens are parsed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace sluice::testing {

struct TokenCase {
  std::string name;  // the tokenizer's
  SpecialText special = SpecialText::kText;
  std::string text;
  std::vector<TokenId> ids;
};

// Returns no cases if the file cannot be read.
std::vector<TokenCase> read_token_cases(const std::string& path);

std::vector<TokenId> encode(const Tokenizer& tokenizer,
                            std::string_view text,
                            SpecialText special = SpecialText::kText);

}  // namespace sluice::testing
