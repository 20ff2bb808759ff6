// SPDX-License-Identifier: Apache-2.0
// The last step of tokenization: converts one piece from the pre-tokenizer to token ids.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/core/types.h"
#include "engine/tokenizer/models/bpe.h"
#include "engine/tokenizer/models/word_cache.h"

namespace sluice {

// Working memory of one call of Tokenizer::encode. Pieces point into text that outlives it.
struct ModelScratch {
  explicit ModelScratch(size_t text_bytes) : cache(text_bytes) {}

  WordCache cache;
  std::vector<TokenId> symbols;
  BpeMerges::Scratch merging;
  std::vector<TokenId> last_tokens;  // this and the next two: unigram models
  std::vector<double> scores;
  std::vector<TokenId> reversed;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the tokens of `piece`, which is not empty and is either valid UTF-8 or only invalid
  // bytes.
  virtual void encode_piece(std::string_view piece,
                            ModelScratch& scratch,
                            std::vector<TokenId>& out) const = 0;
};

}  // namespace sluice
