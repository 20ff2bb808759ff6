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
    "<|flush|>",
    "<|calls|>",
    "<|tool_response>",
    "<|eot|>",
    "<|end_of_turn|>",
    "<end_of_utterance>",
    "<|eos|>",
    "<eos>",
    "[EOS]",
    "[EOT]",
    "[e~[",
    "<EOT>",
    "_<EOT>",
    "<|EOT|>",
    "<turn|>",
    "</s>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
};

// Names that are an end in most models, but not where a model has all of these.
struct Exception {
  std::string_view name;
  std::string_view others[2];
};

constexpr Exception kExceptions[] = {
    // It closes one of several messages (OpenAI's harmony format, Solar Open's).
    {"<|end|>", {"<|return|>", "<|call|>"}},
    {"<|end|>", {"<|flush|>", "<|calls|>"}},
    // It is HTML (Gemma 4).
    {"</s>", {"<|tool_response>"}},
};

// Returns the names of kEndNames that end a generation of this model.
std::vector<std::string_view> end_names(const Tokenizer& tokenizer) {
  std::vector<std::string_view> names(std::begin(kEndNames), std::end(kEndNames));
  const auto is_there = [&](std::string_view name) {
    return name.empty() || tokenizer.find_token(name) != kInvalidToken;
  };
  for (const Exception& exception : kExceptions) {
    if (std::ranges::all_of(exception.others, is_there)) std::erase(names, exception.name);
  }
  return names;
}

}  // namespace

std::vector<TokenId> find_end_tokens(const Vocabulary& vocabulary, const Tokenizer& tokenizer) {
  std::vector<TokenId> ends;
  for (const TokenId id : {vocabulary.eos, vocabulary.eot, vocabulary.eom}) {
    if (id != kInvalidToken) ends.push_back(id);
  }
  const std::vector<std::string_view> names = end_names(tokenizer);
  // Several tokens may have one name.
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    if (std::ranges::find(names, tokenizer.token_bytes(id)) != names.end()) ends.push_back(id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace sluice
