// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/text_windows.h"

#include <algorithm>

#include "engine/tokenizer/tokenizer.h"

namespace sluice {

Expected<std::vector<std::vector<TokenId>>> text_windows(const Checkpoint& checkpoint,
                                                         const std::string& text,
                                                         int64_t max_tokens) {
  SLUICE_TRY(const CheckpointText parts, checkpoint.text());
  const Tokenizer& tokenizer = *parts.tokenizer;
  std::vector<TokenId> tokens;
  SLUICE_TRY_VOID(tokenizer.encode(text, SpecialText::kText, tokens));
  std::vector<TokenId> prefix;
  if (tokenizer.add_bos()) prefix.push_back(tokenizer.bos());
  const auto room = static_cast<size_t>(kTextWindow) - prefix.size();
  std::vector<std::vector<TokenId>> windows;
  size_t at = 0;
  int64_t num_tokens = 0;
  while (at < tokens.size() && num_tokens < max_tokens) {
    const auto left = static_cast<size_t>(max_tokens - num_tokens);
    const size_t count = std::min({room, tokens.size() - at, left});
    std::vector<TokenId> window = prefix;
    window.insert(window.end(),
                  tokens.begin() + static_cast<ptrdiff_t>(at),
                  tokens.begin() + static_cast<ptrdiff_t>(at + count));
    at += count;
    num_tokens += static_cast<int64_t>(window.size());
    if (window.size() >= 2) windows.push_back(std::move(window));
  }
  if (windows.empty()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "the text has " + std::to_string(tokens.size()) + " tokens, expected 2 or more");
  }
  return windows;
}

}  // namespace sluice
