// SPDX-License-Identifier: Apache-2.0
// Source text to tokens, with Jinja's white-space control as Hugging Face sets it: trim_blocks and
// lstrip_blocks on, one trailing newline dropped, line ends normalised.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice::jinja {

enum class TokenKind : uint8_t {
  kData,        // text outside of tags
  kBlockBegin,  // {%
  kBlockEnd,
  kPrintBegin,  // {{
  kPrintEnd,
  kName,
  kString,  // unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // data, name, string value, digits without underscores, operator
  int32_t line = 0;
};

// The last token is kEnd. kInvalidArgument: an unclosed tag, string or bracket, a stray character,
// a character by its name (\N{BULLET}).
Expected<std::vector<Token>> tokenize(std::string_view source);

}  // namespace sluice::jinja
