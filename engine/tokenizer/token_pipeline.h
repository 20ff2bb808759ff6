// SPDX-License-Identifier: Apache-2.0
// Every tokenizer: added tokens are found in the text, the rest is normalized, cut into pieces and
// given to a model; what a token stands for is a table. Readers of GGUF and of tokenizer.json fill
// the parts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/special_tokens.h"
#include "engine/tokenizer/token_model.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

struct AddedToken {
  std::string content;
  TokenId id = kInvalidToken;
  bool in_normalized = false;  // found in normalized text, not in the text as it is
  SpecialTokens::Flags flags;
};

struct TokenizerParts {
  std::vector<std::string> names;    // by id, as files spell them; empty: no such token
  std::vector<std::string> bytes;    // by id: what a token stands for
  std::vector<std::string> spelled;  // by id, only for models that ask: the bytes a name spells
  std::vector<bool> special;         // by id: hidden by skip_special_tokens
  std::vector<AddedToken> added;     // found in text by name
  Normalizer normalizer;
  std::vector<PretokenizerStage> stages;
  bool sees_spelling = false;  // the model's pieces are spelled bytes; the last stage spells them
  // Made last, with views of their strings: the vectors may only be moved.
  std::unique_ptr<TokenModel> model;
  TokenId bos = kInvalidToken;
  TokenId eos = kInvalidToken;
  TokenId eot = kInvalidToken;     // end of a turn, where it is another than eos
  std::vector<TokenId> more_ends;  // of a generation configuration; see replace_more_ends()
  std::vector<TokenId> prefix;     // before and behind a text with special tokens
  std::vector<TokenId> suffix;
  bool strips_first_space = false;
  std::vector<NamedToken> named;  // besides bos and eos, whose ids are known
};

// kDataLoss: an added token's name is too long, or two have one name.
Expected<std::unique_ptr<Tokenizer>> create_pipeline(TokenizerParts parts);

// "<0x0A>", the name of the token of a byte in models with byte fallback.
std::string byte_token_name(uint8_t byte);
// The byte such a name stands for; -1: it is none.
int byte_of_name(std::string_view name);

}  // namespace sluice
