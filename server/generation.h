// SPDX-License-Identifier: Apache-2.0
// One client request from admission to its last byte: submits its choices to the engine, turns
// their tokens into text, and writes the response. Lives on its connection's I/O thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/tokenizer/detokenizer.h"
#include "server/front_end.h"
#include "server/logprobs.h"
#include "server/request_validator.h"
#include "server/response_format.h"

namespace sluice {

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(FrontEnd& front_end, Exchange exchange, GenerationRequest request);
  ~Generation();

  // Submits all choices, or answers with the error of the first that is not accepted.
  void start();

  // One output of the engine for `choice_idx`; flush() follows when the step's outputs are through.
  void accept(size_t choice_idx, const TokenOutput& output);
  void flush();

  // Ends the response with an error: as a status while nothing is sent, as an event later.
  void fail(const Error& error);

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer, const GenerationRequest& request);

    RequestId id;
    bool submitted = false;
    bool finished = false;
    bool has_role = false;  // its role event is written
    Detokenizer detokenizer;
    LogprobsText logprobs;
    PromptLogprobsText prompt_logprobs;
    std::string echoed;              // prompt to repeat before the first text
    std::string text;                // whole responses
    std::string logprobs_json;       // whole responses
    std::vector<TokenId> token_ids;  // whole: all; streamed: since the last event
    std::string finish_reason;
    std::string stop_reason;  // JSON
    int64_t num_tokens = 0;
    double sum_logprobs = 0;  // of its tokens, where they are known
    int64_t num_cached = 0;
  };

  void start_echo(Choice& choice, TokenId first);
  void append_prompt(Choice& choice, const TokenOutput& output);
  void append_token(Choice& choice, const TokenOutput& output, std::string& text);
  void finish_choice(Choice& choice, FinishReason reason);
  void write_event(size_t choice_idx, const std::string& text);
  void send_whole();
  [[nodiscard]] std::vector<size_t> returned_choices() const;
  void finish_stream();
  void begin_stream();
  void abort_open_choices(FinishReason reason);
  void cancel();
  [[nodiscard]] Usage usage() const;
  [[nodiscard]] HttpHeaders headers() const;

  FrontEnd& front_end_;
  Exchange exchange_;
  GenerationRequest request_;
  const Tokenizer& tokenizer_;
  ResponseFormat format_;
  std::vector<std::vector<TokenId>> prompts_;  // when the ids are asked for

  std::vector<Choice> choices_;
  size_t num_open_ = 0;
  int64_t prompt_tokens_ = 0;
  bool ignore_eos_ = false;
  bool wants_logprobs_ = false;
  bool streaming_ = false;  // headers are written
  bool done_ = false;
  std::string events_;  // scratch
};

// Validates, then runs a Generation.
void start_generation(FrontEnd& front_end, Exchange exchange, Endpoint endpoint);

}  // namespace sluice
