// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/token_mask.h"

#include <algorithm>
#include <optional>

namespace sluice {
namespace {

class Mask {
 public:
  explicit Mask(std::span<uint32_t> words) : words_(words) {}

  void set(TokenId token) { word(token) |= bit(token); }

  void clear(TokenId token) { word(token) &= ~bit(token); }

  // Returns false without change when nothing would be left.
  bool keep(std::span<const uint32_t> other) {
    uint32_t left = 0;
    for (size_t i = 0; i < words_.size(); ++i) left |= words_[i] & other[i];
    if (left == 0) return false;
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= other[i];
    return true;
  }

  [[nodiscard]] bool empty() const {
    return std::ranges::all_of(words_, [](uint32_t word) { return word == 0; });
  }

 private:
  static uint32_t bit(TokenId token) { return uint32_t{1} << (token % 32); }

  uint32_t& word(TokenId token) { return words_[static_cast<size_t>(token) / 32]; }

  std::span<uint32_t> words_;
};

// Whether only the last token of `word` is missing.
bool is_due(const std::vector<TokenId>& word, const TokenSequence& generated) {
  return generated.ends_with(std::span(word).first(word.size() - 1));
}

// Returns the token that a limit of reasoning requires; kInvalidToken: none.
TokenId due_end_token(const ReasoningLimit& limit, const TokenSequence& generated) {
  if (!limit.is_set()) return kInvalidToken;
  const std::optional<size_t> begin = generated.find(limit.begin);
  if (!begin) return kInvalidToken;
  const TokenSequence reasoning = generated.from(*begin + limit.begin.size());
  if (reasoning.size() < static_cast<size_t>(limit.max_tokens)) return kInvalidToken;
  if (reasoning.find(limit.end)) return kInvalidToken;
  size_t num_written = std::min(limit.end.size() - 1, reasoning.size());
  while (!reasoning.ends_with(std::span(limit.end).first(num_written))) --num_written;
  return limit.end[num_written];
}

}  // namespace

bool write_token_mask(const SamplingParams& params,
                      int32_t num_generated,
                      const TokenSequence& generated,
                      std::span<const TokenId> end_tokens,
                      int32_t vocab_size,
                      std::span<const uint32_t> grammar,
                      std::span<uint32_t> mask_words) {
  const bool holds_end = num_generated < params.min_tokens;
  const bool has_due_word = std::ranges::any_of(
      params.bad_words, [&](const auto& word) { return is_due(word, generated); });
  const TokenId due = due_end_token(params.reasoning_limit, generated);
  if (due != kInvalidToken) {
    Mask mask(mask_words);
    std::ranges::fill(mask_words, 0);
    mask.set(due);
    if (grammar.empty() || mask.keep(grammar)) return true;
  }
  if (params.allowed_token_ids.empty() && !holds_end && !has_due_word && grammar.empty()) {
    return false;
  }

  Mask mask(mask_words);
  const auto allow = [&] {
    if (params.allowed_token_ids.empty()) {
      std::ranges::fill(mask_words, ~uint32_t{0});
      if (vocab_size % 32 != 0) mask_words.back() = (uint32_t{1} << (vocab_size % 32)) - 1;
    } else {
      std::ranges::fill(mask_words, 0);
      for (const TokenId token : params.allowed_token_ids) mask.set(token);
    }
    if (!grammar.empty() && !mask.keep(grammar)) std::ranges::copy(grammar, mask_words.begin());
  };
  const auto forbid_ends = [&] {
    for (const TokenId token : end_tokens) mask.clear(token);
    for (const TokenId token : params.stop_token_ids) mask.clear(token);
  };
  allow();
  bool ends_forbidden = holds_end;
  if (holds_end) {
    forbid_ends();
    ends_forbidden = !mask.empty();
    if (!ends_forbidden) allow();
  }
  for (const auto& word : params.bad_words) {
    if (is_due(word, generated)) mask.clear(word.back());
  }
  if (mask.empty()) {
    allow();
    if (ends_forbidden) forbid_ends();
  }
  return true;
}

}  // namespace sluice
