// SPDX-License-Identifier: Apache-2.0
// Unigram segmentation (Kudo 2018): cuts a piece into the tokens with the highest sum of scores
// (Viterbi). Linear in the bytes of the piece, times the length of the longest token.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/types.h"
#include "engine/tokenizer/models/token_model.h"
#include "engine/tokenizer/tables/packed_trie.h"

namespace sluice {

class Unigram final : public TokenModel {
 public:
  struct Options {
    // One for a whole run of characters without a token; kInvalidToken: they are left out.
    TokenId unknown = kInvalidToken;
    double unknown_score = 0;
  };

  explicit Unigram(const Options& options) : options_(options) { byte_tokens_.fill(kInvalidToken); }

  // `name` must be new, not empty, and valid until build().
  void add_token(std::string_view name, TokenId token, double score) {
    added_.push_back({name, {score, token}});
  }

  // Call once, after the last token.
  void build();

  void set_byte_token(uint8_t byte, TokenId token) { byte_tokens_[byte] = token; }

  void encode_piece(std::string_view piece,
                    ModelScratch& scratch,
                    std::vector<TokenId>& out) const override;

 private:
  struct Entry {
    double score = 0;
    TokenId token = kInvalidToken;
  };

  [[nodiscard]] size_t length_of(TokenId token) const {
    return token < 0 ? static_cast<size_t>(-token) : lengths_[static_cast<size_t>(token)];
  }

  void find_best(std::string_view piece, ModelScratch& scratch) const;
  void segment(std::string_view piece, ModelScratch& scratch, std::vector<TokenId>& out) const;
  void append_unknown(std::string_view run, std::vector<TokenId>& out) const;

  Options options_;
  std::array<TokenId, 256> byte_tokens_{};
  std::vector<std::pair<std::string_view, Entry>> added_;
  PackedTrie<Entry> names_;
  std::vector<uint32_t> lengths_;  // by token, bytes of its name
  size_t longest_ = 0;
};

}  // namespace sluice
