// SPDX-License-Identifier: Apache-2.0
#include "engine/loop/grammar_vocabulary.h"

#include "engine/tokenizer/tokenizer.h"

namespace sluice {

GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, int32_t width) {
  GrammarVocabulary vocabulary;
  vocabulary.width = width;
  vocabulary.ends = tokenizer.end_tokens();
  vocabulary.tokens.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string& token = vocabulary.tokens.emplace_back();
    if (tokenizer.is_special(id)) token += kControlByte;
    token += tokenizer.token_bytes(id);
  }
  return vocabulary;
}

}  // namespace sluice
