// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/detokenizer.h"

#include <utility>

#include "engine/tokenizer/text/utf8.h"

namespace sluice {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, StopConfig stop, bool skip_special_tokens)
    : tokenizer_(tokenizer), stops_(std::move(stop)), skip_special_tokens_(skip_special_tokens) {}

Detokenizer::Result Detokenizer::append(TokenId token) {
  if (ended_) return {};
  ++num_tokens_;
  if (skip_special_tokens_ && tokenizer_.is_special(token)) return pass_hidden(token);
  partial_ += tokenizer_.token_bytes(token);
  return take_ready(take_characters(/*at_end=*/false));
}

Detokenizer::Result Detokenizer::pass_hidden(TokenId token) {
  const std::string_view name = tokenizer_.token_bytes(token);
  const int found = stops_.find_name(name, num_tokens_);
  if (found < 0) return {};
  // Bytes waiting for the rest of a character end here, as before a visible token.
  Result result = take_ready(take_characters(/*at_end=*/true));
  if (ended_) return result;
  result.text += stops_.release();
  if (stops_.config().include_in_output) result.text += name;
  result.matched_stop = found;
  ended_ = true;
  return result;
}

std::string Detokenizer::finish() {
  if (ended_) return {};
  std::string text = take_ready(take_characters(/*at_end=*/true)).text;
  text += stops_.release();  // empty after a match
  ended_ = true;
  return text;
}

std::string Detokenizer::take_characters(bool at_end) {
  std::string text;
  size_t position = 0;
  while (position < partial_.size()) {
    const Utf8Part part = next_utf8_part(partial_, position);
    if (part.kind == Utf8Kind::kTruncated && !at_end) break;
    if (part.kind == Utf8Kind::kCharacter) {
      text.append(partial_, position, part.length);
    } else {
      text += kReplacementCharacter;
    }
    position += part.length;
  }
  partial_.erase(0, position);
  return text;
}

Detokenizer::Result Detokenizer::take_ready(std::string_view text) {
  Result result = stops_.append(text, num_tokens_);
  ended_ = result.matched_stop >= 0;
  return result;
}

std::string decode_tokens(const Tokenizer& tokenizer, std::span<const TokenId> tokens) {
  std::string bytes;
  bool at_start = tokenizer.strips_first_space();
  for (const TokenId token : tokens) {
    std::string_view part = tokenizer.token_bytes(token);
    const bool is_text = !tokenizer.is_special(token);
    if (at_start && is_text && part.starts_with(' ')) part.remove_prefix(1);
    at_start = at_start && !is_text;
    bytes += part;
  }
  return bytes;
}

}  // namespace sluice
