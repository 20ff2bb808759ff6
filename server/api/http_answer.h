// SPDX-License-Identifier: Apache-2.0
// OpenAI's answer to a generation over HTTP: one JSON object, or server-sent events.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/answer.h"
#include "server/api/logprobs.h"
#include "server/api/parameters.h"
#include "server/front_end.h"

namespace sluice {

class HttpAnswer final : public Answer {
 public:
  HttpAnswer(FrontEnd& front_end, Exchange exchange, Endpoint endpoint, std::string_view model);

  IoWorker& worker() override;

  [[nodiscard]] const std::string& request_id() const override {
    return exchange_.request.request_id;
  }

  void prepare(const GenerationRequest& request) override;
  void attach(std::shared_ptr<Generation> generation) override;
  void add_prompt(size_t choice_idx, std::span<const PromptLogprob> scored) override;
  void add_token(size_t choice_idx, const TokenOutput& output) override;
  void tell(const ChoiceNews& news, const Usage& usage) override;
  void flush() override;
  void finish(std::span<const size_t> returned, const Usage& usage) override;
  void fail(const Error& error) override;
  void client_left() override;

 private:
  HttpAnswer(FrontEnd& front_end,
             Exchange exchange,
             Endpoint endpoint,
             std::string_view model,
             const std::string& id);

  struct Choice {
    Choice(const Tokenizer& tokenizer, const GenerationRequest& request);

    bool has_role = false;  // its role event is written
    LogprobsText logprobs;
    PromptLogprobsText prompt_logprobs;
    std::string text;                // whole responses
    std::string logprobs_json;       // whole responses
    std::vector<TokenId> token_ids;  // whole: all; streamed: since the last event
    std::string_view finish_reason;
    std::string stop_reason;  // JSON
  };

  void write_event(const ChoiceNews& news, const Usage& usage);
  void send_whole(std::span<const size_t> returned, const Usage& usage);
  void begin_stream();
  [[nodiscard]] HttpHeaders headers() const;

  FrontEnd& front_end_;
  Exchange exchange_;
  ResponseFormat format_;
  const GenerationRequest* request_ = nullptr;
  std::vector<std::vector<TokenId>> prompts_;  // when the ids are asked for
  std::vector<Choice> choices_;
  bool streaming_ = false;  // headers are written
  std::string events_;      // scratch
};

}  // namespace sluice
