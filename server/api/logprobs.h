// SPDX-License-Identifier: Apache-2.0
// The JSON of log probabilities as tokens arrive, in the form of the chat API, of the events of
// Responses or of the completions API, and vLLM's `prompt_logprobs`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/parameters.h"

namespace sluice {

class JsonWriter;

class LogprobsText {
 public:
  // `endpoint`: kResponses is its events, whose tokens have no bytes; the part that is whole has a
  // chat's. `skip_special_tokens`: offsets count in a text without generated special tokens.
  LogprobsText(const Tokenizer& tokenizer, Endpoint endpoint, bool skip_special_tokens)
      : tokenizer_(&tokenizer), endpoint_(endpoint), skip_special_tokens_(skip_special_tokens) {}

  // Takes a prompt that is echoed as `text`: its first token, which has no log-probability, then
  // the others with their `num_top` likeliest alternatives.
  void start_prompt(std::span<const TokenId> tokens, std::string_view text);
  void append_prompt(const PromptLogprob& scored, int32_t num_top);

  void append(const TokenOutput& output);

  [[nodiscard]] bool empty() const { return items_.empty(); }

  // Returns everything since the last take(), as a JSON object.
  std::string take();

  // Not for completions: returns everything since the last take_items(), as JSON list items.
  std::string take_items() { return std::exchange(items_, {}); }

 private:
  // The token, log-probability and alternatives of one row.
  struct Row {
    TokenId token;
    float logprob;
    std::span<const TokenLogprob> top;
  };

  void append_chat(const Row& row);
  void append_completion(const Row& row, int64_t offset);
  void append_position(TokenId token, int64_t offset);
  void pass_text(TokenId token);
  void write_token(std::string_view bytes, float logprob, JsonWriter& json) const;
  void write_top(const Row& row);

  const Tokenizer* tokenizer_;
  Endpoint endpoint_;
  bool skip_special_tokens_;
  std::string items_;  // list items; completions: the list `tokens`
  std::string token_logprobs_;
  std::string top_logprobs_;
  std::string text_offsets_;
  int64_t num_characters_ = 0;  // characters of the text so far
  std::string partial_;         // bytes of the text's last, unfinished character
  std::vector<int64_t> prompt_offsets_;
  size_t num_prompt_ = 0;  // tokens of the prompt so far
};

// JSON of the form [null, {"<id>": {"logprob", "rank", "decoded_token"}, ...}, ...]: the token
// itself, then the likeliest tokens.
class PromptLogprobsText {
 public:
  explicit PromptLogprobsText(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  void append(const PromptLogprob& scored, int32_t num_top);
  std::string take();

 private:
  const Tokenizer* tokenizer_;
  std::string items_;
};

}  // namespace sluice
