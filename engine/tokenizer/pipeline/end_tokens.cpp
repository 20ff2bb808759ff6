// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/pipeline/end_tokens.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr std::string_view kEndNames[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
    "<|eot|>",
    "<|end_of_turn|>",
    "<end_of_utterance>",
    "<|eos|>",
    "<EOT>",
    "<|EOT|>",
    "<turn|>",
    "</s>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
};

}  // namespace

std::vector<TokenId> find_end_tokens(const Vocabulary& vocabulary, const Tokenizer& tokenizer) {
  std::vector<TokenId> ends;
  for (const TokenId id : {vocabulary.eos, vocabulary.eot}) {
    if (id != kInvalidToken) ends.push_back(id);
  }
  // In a model with these, <|end|> only closes one of several messages (OpenAI's harmony format).
  const bool end_closes_message = tokenizer.find_token("<|return|>") != kInvalidToken &&
                                  tokenizer.find_token("<|call|>") != kInvalidToken;
  // Several tokens may have one name.
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    const std::string_view name = tokenizer.token_bytes(id);
    if (end_closes_message && name == "<|end|>") continue;
    if (std::ranges::find(kEndNames, name) != std::end(kEndNames)) ends.push_back(id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace sluice
