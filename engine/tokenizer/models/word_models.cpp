// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/models/word_models.h"

#include <algorithm>

namespace sluice {
namespace {

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

}  // namespace

void WordLevel::encode_piece(std::string_view piece,
                             ModelScratch& /*scratch*/,
                             std::vector<TokenId>& out) const {
  const TokenId token = tokens_.find(piece);
  const TokenId known = token == kInvalidToken ? unknown_ : token;
  if (known != kInvalidToken) out.push_back(known);
}

void WordPiece::add_token(std::string_view name, TokenId token) {
  added_first_.emplace_back(name, token);
  if (name.starts_with(options_.prefix) && name.size() > options_.prefix.size()) {
    added_next_.emplace_back(name.substr(options_.prefix.size()), token);
  }
}

void WordPiece::build() {
  first_.build(std::exchange(added_first_, {}));
  next_.build(std::exchange(added_next_, {}));
}

void WordPiece::encode_piece(std::string_view piece,
                             ModelScratch& /*scratch*/,
                             std::vector<TokenId>& out) const {
  const size_t first_token = out.size();
  bool is_known = count_characters(piece) <= options_.max_characters;
  for (size_t begin = 0; is_known && begin < piece.size();) {
    const PackedTrie<TokenId>& names = begin == 0 ? first_ : next_;
    TokenId longest = kInvalidToken;
    size_t longest_end = begin;
    uint32_t node = names.kRoot;
    for (size_t end = begin; end < piece.size();) {
      node = names.child(node, piece[end]);
      if (node == names.kAbsent) break;
      ++end;
      const TokenId* token = names.value(node);
      if (token == nullptr) continue;
      longest = *token;
      longest_end = end;
    }
    is_known = longest != kInvalidToken;
    if (is_known) out.push_back(longest);
    begin = longest_end;
  }
  if (is_known) return;
  out.resize(first_token);
  if (options_.unknown != kInvalidToken) out.push_back(options_.unknown);
}

}  // namespace sluice
