// SPDX-License-Identifier: Apache-2.0
// The transport of a generation's answer over HTTP: one JSON body, or server-sent events. The
// format writes their contents.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "server/api/answer.h"
#include "server/api/answer_format.h"
#include "server/front/front_end.h"

namespace sluice {

class HttpAnswer final : public Answer {
 public:
  HttpAnswer(FrontEnd& front_end, Exchange exchange, std::unique_ptr<AnswerFormat> format);

  // Where the request's version has no worker any more and nothing is sent, `again` gets the
  // exchange, with its body, in place of the client getting the error.
  void let_move(std::function<void(Exchange)> again) { again_ = std::move(again); }

  IoWorker& worker() override;

  [[nodiscard]] const std::string& request_id() const override {
    return exchange_.request.request_id;
  }

  void prepare(const GenerationRequest& request) override;
  void attach(std::shared_ptr<Generation> generation) override;
  void add_prompt(size_t choice_idx, std::span<const PromptLogprob> scored) override;
  void add_token(size_t choice_idx, const TokenOutput& output) override;
  void add_delta(const ChoiceDelta& delta, const Usage& usage) override;
  void flush() override;
  void finish(std::span<const size_t> returned, const Usage& usage) override;
  bool fail(const Error& error) override;
  void client_left() override;

 private:
  void ping();
  void note_end(std::string_view reason);
  void begin_stream();
  void write_last_events();
  [[nodiscard]] HttpHeaders headers() const;

  FrontEnd& front_end_;
  Exchange exchange_;
  const std::unique_ptr<AnswerFormat> format_;
  const GenerationRequest* request_ = nullptr;
  std::function<void(Exchange)> again_;  // empty: the exchange has no body, or the answer has begun
  bool streaming_ = false;               // headers are written
  std::string events_;      // scratch
};

}  // namespace sluice
