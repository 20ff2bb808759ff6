// SPDX-License-Identifier: Apache-2.0
// Models that look pieces up: whole pieces (WordLevel), or the longest token at each place of a
// piece (BERT's WordPiece), where all but the first are spelled with a prefix ("##").
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/models/token_model.h"
#include "engine/tokenizer/tables/packed_trie.h"
#include "engine/tokenizer/tables/token_table.h"

namespace sluice {

class WordLevel final : public TokenModel {
 public:
  // The names in `tokens` must outlive the model. kInvalidToken: unknown words are left out.
  WordLevel(TokenTable tokens, TokenId unknown) : tokens_(std::move(tokens)), unknown_(unknown) {}

  void encode_piece(std::string_view piece,
                    ModelScratch& scratch,
                    std::vector<TokenId>& out) const override;

 private:
  TokenTable tokens_;
  TokenId unknown_;
};

class WordPiece final : public TokenModel {
 public:
  struct Options {
    std::string prefix;
    TokenId unknown = kInvalidToken;  // for a word that tokens cannot compose
    size_t max_characters = 100;      // a longer word is unknown
  };

  explicit WordPiece(Options options) : options_(std::move(options)) {}

  // `name`, as in the vocabulary, must stay valid until build().
  void add_token(std::string_view name, TokenId token);
  // Call once, after the last token.
  void build();

  void encode_piece(std::string_view piece,
                    ModelScratch& scratch,
                    std::vector<TokenId>& out) const override;

 private:
  using Names = std::vector<std::pair<std::string_view, TokenId>>;

  Options options_;
  Names added_first_;
  Names added_next_;
  PackedTrie<TokenId> first_;  // for the beginning of a word
  PackedTrie<TokenId> next_;   // for the rest; without the prefix
};

}  // namespace sluice
