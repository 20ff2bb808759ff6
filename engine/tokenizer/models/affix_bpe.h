// SPDX-License-Identifier: Apache-2.0
// BPE whose symbols carry their position in a word: all but the first begin with a prefix ("##"),
// the last one ends with a suffix ("</w>"). Used by GPT-1, CLIP and similar models.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/models/token_model.h"
#include "engine/tokenizer/tables/token_table.h"

namespace sluice {

class AffixBpe final : public TokenModel {
 public:
  struct Options {
    std::string prefix;
    std::string suffix;
    TokenId unknown = kInvalidToken;  // kInvalidToken: characters without a token are left out
    bool fuse_unknown = false;        // a run of unknown characters is one token
    bool whole_pieces_first = false;  // a piece that is a token needs no merges
  };

  // The names in `tokens` must outlive the model.
  AffixBpe(BpeMerges merges, TokenTable tokens, Options options);

  void set_byte_token(uint8_t byte, TokenId token) { byte_tokens_[byte] = token; }

  void encode_piece(std::string_view piece,
                    ModelScratch& scratch,
                    std::vector<TokenId>& out) const override;

 private:
  void append_symbols(std::string_view piece, std::vector<TokenId>& symbols) const;
  bool append_bytes(std::string_view spelled, std::vector<TokenId>& symbols) const;

  BpeMerges merges_;
  TokenTable tokens_;
  Options options_;
  std::array<TokenId, 256> byte_tokens_{};
};

}  // namespace sluice
