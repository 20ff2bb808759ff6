// SPDX-License-Identifier: Apache-2.0
// The JSON of log probabilities as tokens arrive, in the form of the chat or the completions API.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/parameters.h"

namespace sluice {

class LogprobsText {
 public:
  LogprobsText(const Tokenizer& tokenizer, Endpoint endpoint)
      : tokenizer_(&tokenizer), endpoint_(endpoint) {}

  void append(const TokenOutput& output);

  [[nodiscard]] bool empty() const { return items_.empty(); }

  // Everything since the last take(), as a JSON object.
  std::string take();

 private:
  void append_chat(const TokenOutput& output);
  void append_completion(const TokenOutput& output);

  const Tokenizer* tokenizer_;
  Endpoint endpoint_;
  std::string items_;  // chat: list items; completions: the list `tokens`
  std::string token_logprobs_;
  std::string top_logprobs_;
  std::string text_offsets_;
  int64_t offset_ = 0;  // characters of all tokens so far
};

}  // namespace sluice
