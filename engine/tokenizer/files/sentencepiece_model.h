// SPDX-License-Identifier: Apache-2.0
// tokenizer.model, a SentencePiece model: a protocol buffer (sentencepiece_model.proto of that
// package) with the pieces, by id, and how texts become them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

struct SentencePieceModel {
  struct Piece {
    std::string text;  // UTF-8, with U+2581 for a space; no other piece has it
    float score = 0;
    TokenType type = TokenType::kNormal;  // the file's numbers are GGUF's
  };

  std::vector<Piece> pieces;  // by id; exactly one is kUnknown
  TokenId unknown = kInvalidToken;
  TokenId bos = kInvalidToken;
  TokenId eos = kInvalidToken;
  bool is_unigram = true;  // otherwise BPE by scores
  bool byte_fallback = false;
  bool has_dummy_prefix = true;           // a text gets a space in front
  bool removes_extra_whitespaces = true;  // those at its ends, and of several in a row all but one
  std::string precompiled_charsmap;       // compiled normalization rules, or empty
};

// kDataLoss: the bytes are no such model, or contradict themselves; kUnsupported names the kind of
// model, or the setting, that is not read.
Expected<SentencePieceModel> read_sentencepiece_model(std::string_view bytes);

}  // namespace sluice
