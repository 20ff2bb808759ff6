// SPDX-License-Identifier: Apache-2.0
// The common tokenizer: added tokens are found in the text; the rest is normalized, cut into pieces
// and passed to a model; a table gives each token's bytes. Readers of GGUF and of tokenizer.json
// fill the parts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/models/token_model.h"
#include "engine/tokenizer/pipeline/normalizer.h"
#include "engine/tokenizer/pipeline/pretokenizer.h"
#include "engine/tokenizer/pipeline/special_tokens.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

struct AddedToken {
  std::string content;
  TokenId id = kInvalidToken;
  bool in_normalized = false;  // found in normalized instead of original text
  SpecialTokens::Flags flags;
};

struct TokenizerParts {
  std::vector<std::string> names;    // by id, as in files; empty: no such token
  std::vector<std::string> bytes;    // by id: the bytes of a token
  std::vector<std::string> spelled;  // by id, only for models that ask: the bytes of a name's
                                     // spelling
  std::vector<bool> special;         // by id: hidden by skip_special_tokens
  std::vector<AddedToken> added;     // found in text by name
  Normalizer normalizer;
  std::vector<PretokenizerStage> stages;
  bool sees_spelling = false;  // pieces are spelled bytes; the last stage spells them
  // Created last, with views of these strings: the vectors may only be moved.
  std::unique_ptr<TokenModel> model;
  TokenId bos = kInvalidToken;
  TokenId eos = kInvalidToken;
  TokenId eot = kInvalidToken;     // end of a turn, if it differs from eos
  TokenId eom = kInvalidToken;     // end of a message that calls tools, if it differs from both
  std::vector<TokenId> own_ends;   // of the file, beside eos, eot, eom and the known names
  std::vector<TokenId> more_ends;  // from a generation configuration; see replace_more_ends()
  std::vector<TokenId> prefix;     // these surround a text with special tokens
  std::vector<TokenId> suffix;
  std::vector<TokenId> between;  // the two texts of a pair
  bool strips_first_space = false;
  std::vector<NamedToken> named;  // except bos and eos, whose ids are known
};

// kDataLoss: an added token's name is too long, or used twice.
Expected<std::unique_ptr<Tokenizer>> create_pipeline(TokenizerParts parts);

// Returns a byte's token name in models with byte fallback, as "<0x0A>".
std::string byte_token_name(uint8_t byte);
// Returns the byte of such a name; -1 for other names.
int byte_of_name(std::string_view name);

}  // namespace sluice
