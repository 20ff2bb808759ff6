// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/detokenizer.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"
#include "engine/tokenizer/utf8.h"

namespace sluice {

bool Detokenizer::Matcher::advance(char byte) {
  // `matched` is below the pattern's size here: a full match ends the stream or is passed.
  while (matched > 0 && pattern[matched] != byte) matched = fallbacks[matched - 1];
  if (pattern[matched] == byte) ++matched;
  return matched == pattern.size();
}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, StopConfig stop, bool skip_special_tokens)
    : tokenizer_(tokenizer), stop_(std::move(stop)), skip_special_tokens_(skip_special_tokens) {
  matchers_.reserve(stop_.strings.size());
  for (const std::string& pattern : stop_.strings) {
    CHECK(!pattern.empty());
    Matcher matcher{pattern, {}};
    std::vector<uint32_t> fallbacks(pattern.size(), 0);
    for (size_t i = 1; i < pattern.size(); ++i) {
      uint32_t border = fallbacks[i - 1];
      while (border > 0 && pattern[border] != pattern[i]) border = fallbacks[border - 1];
      fallbacks[i] = border + (pattern[border] == pattern[i] ? 1 : 0);
    }
    matcher.fallbacks = std::move(fallbacks);
    matchers_.push_back(std::move(matcher));
  }
}

Detokenizer::Result Detokenizer::append(TokenId token) {
  if (ended_) return {};
  ++num_tokens_;
  if (skip_special_tokens_ && tokenizer_.is_special(token)) return pass_hidden(token);
  partial_ += tokenizer_.token_bytes(token);
  return take_ready(take_characters(/*at_end=*/false));
}

Detokenizer::Result Detokenizer::pass_hidden(TokenId token) {
  if (num_tokens_ <= stop_.min_tokens) return {};
  const std::string_view name = tokenizer_.token_bytes(token);
  const auto found = std::ranges::find(stop_.strings, name);
  if (found == stop_.strings.end()) return {};
  // Bytes that wait for the rest of their character end here, as they do before a shown token.
  Result result = take_ready(take_characters(/*at_end=*/true));
  if (ended_) return result;
  result.text += held_;
  if (stop_.include_in_output) result.text += name;
  result.matched_stop = static_cast<int>(found - stop_.strings.begin());
  ended_ = true;
  held_.clear();
  return result;
}

std::string Detokenizer::finish() {
  if (ended_) return {};
  std::string text = take_ready(take_characters(/*at_end=*/true)).text;
  text += held_;  // empty after a match
  ended_ = true;
  held_.clear();
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
  if (matchers_.empty()) return {std::string(text), -1};
  const bool may_end = num_tokens_ > stop_.min_tokens;
  for (size_t i = 0; i < text.size(); ++i) {
    int found = -1;
    for (size_t m = 0; m < matchers_.size(); ++m) {
      if (!matchers_[m].advance(text[i])) continue;
      if (!may_end) {
        matchers_[m].pass_match();
        continue;
      }
      if (found < 0 || matchers_[m].pattern.size() > matchers_[found].pattern.size()) {
        found = static_cast<int>(m);
      }
    }
    if (found < 0) continue;
    ended_ = true;
    Result result{held_.append(text.substr(0, i + 1)), found};
    if (!stop_.include_in_output) {
      result.text.resize(result.text.size() - matchers_[found].pattern.size());
    }
    held_.clear();
    return result;
  }
  size_t undecided = 0;
  for (const Matcher& matcher : matchers_) undecided = std::max<size_t>(undecided, matcher.matched);
  held_ += text;
  Result result{held_.substr(0, held_.size() - undecided), -1};
  held_.erase(0, held_.size() - undecided);
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
