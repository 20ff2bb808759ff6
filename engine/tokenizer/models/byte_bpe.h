// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM, Falcon, DeepSeek, ...): every byte is a symbol.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/tokenizer/models/token_model.h"
#include "engine/tokenizer/tables/token_table.h"

namespace sluice {

class ByteBpe final : public TokenModel {
 public:
  explicit ByteBpe(BpeMerges merges) : merges_(std::move(merges)) {
    byte_tokens_.fill(kInvalidToken);
  }

  void set_byte_token(uint8_t byte, TokenId token) { byte_tokens_[byte] = token; }

  // Sets the token for bytes without one; by default such bytes are removed before merging.
  void set_unknown(TokenId token, bool fuse) {
    unknown_ = token;
    fuse_unknown_ = fuse;
  }

  // Sets whole words (by bytes, which must outlive the model): such a piece becomes its token,
  // whatever the merges say.
  void set_whole_words(TokenTable words) { words_ = std::move(words); }

  void encode_piece(std::string_view piece,
                    ModelScratch& scratch,
                    std::vector<TokenId>& out) const override;

 private:
  BpeMerges merges_;
  std::array<TokenId, 256> byte_tokens_{};
  TokenId unknown_ = kInvalidToken;
  bool fuse_unknown_ = false;
  std::optional<TokenTable> words_;
};

}  // namespace sluice
