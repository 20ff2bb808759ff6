// SPDX-License-Identifier: Apache-2.0
// Grammars over a vocabulary of the 256 bytes and a few control tokens, where each text has one
// spelling.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/sampling/grammar/grammar.h"

namespace sluice::testing {

inline constexpr TokenId kByteEnd = 256;      // <end>, ends an answer
inline constexpr TokenId kByteControl = 257;  // <control>
inline constexpr TokenId kByteMarker = 258;   // <marker>
inline constexpr int32_t kByteWidth = 263;    // width of a row; ids from 259 on are no tokens

inline GrammarVocabulary byte_vocabulary() {
  GrammarVocabulary vocabulary;
  vocabulary.width = kByteWidth;
  vocabulary.ends = {kByteEnd};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (const char* name : {"<end>", "<control>", "<marker>"}) {
    vocabulary.tokens.push_back(std::string("\xFF") + name);
  }
  return vocabulary;
}

inline std::unique_ptr<GrammarBackend> byte_backend(const GrammarLimits& limits = {}) {
  return std::move(*create_grammar_backend(byte_vocabulary(), limits));
}

inline bool accepts_prefix(GrammarMatcher& matcher, std::string_view text) {
  for (const char c : text) {
    if (!matcher.accept(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

// Whether the grammar accepts all of the text, and then the end.
inline bool accepts(const Grammar& grammar, std::string_view text) {
  const auto matcher = grammar.match();
  return accepts_prefix(*matcher, text) && matcher->accept(kByteEnd);
}

inline std::vector<TokenId> allowed_tokens(GrammarMatcher& matcher) {
  std::vector<uint32_t> row(token_mask_words(kByteWidth));
  matcher.fill(row);
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < kByteWidth; ++token) {
    if ((row[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0) tokens.push_back(token);
  }
  return tokens;
}

}  // namespace sluice::testing
