// SPDX-License-Identifier: Apache-2.0
// BPE over characters with byte fallback: SentencePiece's BPE (Llama 2, Mistral, Phi-3, Gemma) and
// the tokenizer.json files made from it. Such models treat a text as one piece, so pieces are first
// cut between characters that are adjacent in no token: no merge crosses such a place.
#pragma once

#include <array>
#include <bitset>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/models/token_model.h"
#include "engine/tokenizer/tables/pair_map.h"
#include "engine/tokenizer/tables/token_table.h"

namespace sluice {

class CharBpe final : public TokenModel {
 public:
  struct Options {
    TokenId unknown = kInvalidToken;  // kInvalidToken: characters without a token are left out
    bool fuse_unknown = false;        // a run of unknown characters is one token
    bool whole_pieces_first = false;  // a piece that is a token needs no merges
    // Ids from here on are characters that occur only inside tokens; one left over after merging is
    // replaced by its bytes.
    TokenId first_extra = 0;
  };

  CharBpe(BpeMerges merges, const Options& options);

  // Adds a valid UTF-8 name that merging can make; a name of one character is a symbol. `name` must
  // outlive the model.
  void add_token(std::string_view name, TokenId token);
  void add_extra(std::string_view character);  // in the order of ids

  void set_byte_token(uint8_t byte, TokenId token) { byte_tokens_[byte] = token; }

  // Only for whole_pieces_first.
  void set_whole_pieces(TokenTable pieces) { pieces_ = std::move(pieces); }

  void encode_piece(std::string_view piece,
                    ModelScratch& scratch,
                    std::vector<TokenId>& out) const override;

 private:
  [[nodiscard]] TokenId symbol_of(uint32_t code) const;
  [[nodiscard]] bool may_join(uint32_t left, uint32_t right) const;
  [[nodiscard]] size_t first_word(std::string_view text) const;
  void append_bytes(std::string_view character, bool can_fuse, std::vector<TokenId>& out) const;
  void encode_word(std::string_view word, ModelScratch& scratch, std::vector<TokenId>& out) const;

  // ASCII and the space of SentencePiece (as 128), the characters of most pairs.
  static constexpr size_t kCommon = 129;
  static size_t common_index(uint32_t code);

  BpeMerges merges_;
  Options options_;
  std::array<TokenId, 256> byte_tokens_{};
  std::array<TokenId, 128> ascii_symbols_{};
  PairMap symbols_{1024};                        // code point -> symbol
  std::bitset<kCommon * kCommon> common_pairs_;  // adjacent inside a token
  PairMap pairs_{1024};                          // left << 32 | right -> 1
  std::vector<std::string> extras_;
  TokenTable pieces_{{}};
};

}  // namespace sluice
