// SPDX-License-Identifier: Apache-2.0
#include "server/api/http_answer.h"

#include <ctime>
#include <utility>

#include "server/api/api_errors.h"
#include "server/api/generation.h"
#include "server/json/json_writer.h"

namespace sluice {

HttpAnswer::Choice::Choice(const Tokenizer& tokenizer, const GenerationRequest& request)
    : logprobs(tokenizer, request.endpoint, request.skip_special_tokens),
      prompt_logprobs(tokenizer) {}

HttpAnswer::HttpAnswer(FrontEnd& front_end,
                       Exchange exchange,
                       Endpoint endpoint,
                       std::string_view model)
    : HttpAnswer(front_end, std::move(exchange), endpoint, model, response_id(endpoint)) {}

HttpAnswer::HttpAnswer(FrontEnd& front_end,
                       Exchange exchange,
                       Endpoint endpoint,
                       std::string_view model,
                       const std::string& id)
    : front_end_(front_end),
      exchange_(std::move(exchange)),
      format_(endpoint,
              id,
              static_cast<int64_t>(std::time(nullptr)),
              model,
              front_end.engine.model().system_fingerprint) {
  // Who sent no name for the request finds it in the log by the answer's.
  if (exchange_.request.request_id.empty()) exchange_.request.request_id = id;
}

IoWorker& HttpAnswer::worker() { return exchange_.writer->worker(); }

void HttpAnswer::prepare(const GenerationRequest& request) {
  request_ = &request;
  choices_.reserve(request.requests.size());
  const Tokenizer& tokenizer = front_end_.engine.tokenizer();
  for (const ValidRequest& choice : request.requests) {
    const std::vector<TokenId>& ids = choice.prompt;
    choices_.emplace_back(tokenizer, request);
    if (request.return_token_ids) prompts_.push_back(ids);
    if (request.num_echoed_logprobs >= 0) {
      const size_t prompt_idx = (choices_.size() - 1) / static_cast<size_t>(request.num_choices);
      choices_.back().logprobs.start_prompt(ids, request.echoed[prompt_idx]);
    }
  }
}

void HttpAnswer::attach(std::shared_ptr<Generation> generation) {
  // The generation holds this answer.
  exchange_.writer->set_callbacks([generation] { generation->cancel(); },
                                  [this, generation] {
                                    if (!request_->stream) return;
                                    begin_stream();
                                    exchange_.writer->write(": ping\n\n");
                                    exchange_.writer->flush();
                                  });
}

void HttpAnswer::add_prompt(size_t choice_idx, std::span<const PromptLogprob> scored) {
  Choice& choice = choices_[choice_idx];
  for (const PromptLogprob& token : scored) {
    if (request_->num_echoed_logprobs >= 0) {
      choice.logprobs.append_prompt(token, request_->num_echoed_logprobs);
    }
    if (request_->num_prompt_logprobs >= 0) {
      choice.prompt_logprobs.append(token, request_->num_prompt_logprobs);
    }
  }
}

void HttpAnswer::add_token(size_t choice_idx, const TokenOutput& output) {
  Choice& choice = choices_[choice_idx];
  if (request_->wants_logprobs) choice.logprobs.append(output);
  if (request_->return_token_ids) choice.token_ids.push_back(output.token);
}

void HttpAnswer::tell(const ChoiceNews& news, const Usage& usage) {
  Choice& choice = choices_[news.choice_idx];
  choice.finish_reason = to_string(news.finish_reason);
  choice.stop_reason.clear();
  if (!news.matched_stop.empty()) {
    append_json_string(choice.stop_reason, news.matched_stop);
  } else if (news.stop_token != kInvalidToken) {
    choice.stop_reason = std::to_string(news.stop_token);
  }
  if (request_->stream) {
    write_event(news, usage);
  } else {
    choice.text += news.text;
  }
}

void HttpAnswer::write_event(const ChoiceNews& news, const Usage& usage) {
  Choice& choice = choices_[news.choice_idx];
  if (news.text.empty() && choice.logprobs.empty() && choice.finish_reason.empty()) return;
  begin_stream();
  events_.clear();
  const bool wants_usage = request_->include_usage;
  const Usage* shown_usage = request_->continuous_usage_stats ? &usage : nullptr;
  if (!choice.has_role && request_->endpoint == Endpoint::kChat) {
    format_.append_role_event(events_, news.choice_idx, wants_usage, shown_usage);
  }
  choice.has_role = true;
  const std::string logprobs = choice.logprobs.empty() ? "" : choice.logprobs.take();
  ChoiceText piece;
  piece.index = news.choice_idx;
  piece.text = news.text;
  piece.logprobs = logprobs;
  piece.finish_reason = choice.finish_reason;
  piece.stop_reason = choice.stop_reason;
  if (request_->return_token_ids) piece.token_ids = &choice.token_ids;
  format_.append_event(events_, piece, wants_usage, shown_usage);
  choice.token_ids.clear();
  exchange_.writer->write(events_);
}

void HttpAnswer::flush() {
  if (streaming_) exchange_.writer->flush();
}

void HttpAnswer::finish(std::span<const size_t> returned, const Usage& usage) {
  exchange_.usage = usage;
  if (!request_->stream) return send_whole(returned, usage);
  begin_stream();
  // Usage and the end leave in one write: proxies read usage out of the last piece of body.
  events_.clear();
  if (request_->include_usage) format_.append_usage_event(events_, usage);
  events_ += kDoneEvent;
  exchange_.writer->write(events_);
  exchange_.writer->finish_stream();
  front_end_.log_request(exchange_, 200);
}

void HttpAnswer::send_whole(std::span<const size_t> returned, const Usage& usage) {
  std::vector<ChoiceText> texts(returned.size());
  std::vector<const std::vector<TokenId>*> prompts;
  const auto num_choices = static_cast<size_t>(request_->num_choices);
  std::vector<std::string> prompt_logprobs;  // by prompt; its first choice has them
  for (size_t i = 0; request_->num_prompt_logprobs >= 0 && i < choices_.size(); i += num_choices) {
    prompt_logprobs.push_back(choices_[i].prompt_logprobs.take());
  }
  for (size_t i = 0; i < returned.size(); ++i) {
    if (!prompts_.empty()) prompts.push_back(&prompts_[returned[i]]);
    Choice& choice = choices_[returned[i]];
    if (request_->wants_logprobs) choice.logprobs_json = choice.logprobs.take();
    texts[i].index = i;
    texts[i].text = choice.text;
    texts[i].logprobs = choice.logprobs_json;
    texts[i].finish_reason = choice.finish_reason;
    texts[i].stop_reason = choice.stop_reason;
    if (request_->return_token_ids) texts[i].token_ids = &choice.token_ids;
    if (!prompt_logprobs.empty()) {
      texts[i].prompt_logprobs = prompt_logprobs[returned[i] / num_choices];
    }
  }
  HttpResponse response;
  response.headers = headers();
  response.body = format_.whole(texts, prompts, usage);
  front_end_.respond(exchange_, std::move(response));
}

void HttpAnswer::begin_stream() {
  if (streaming_) return;
  streaming_ = true;
  front_end_.http_counters.count(exchange_.route_idx, 200);
  HttpHeaders lines = headers();
  add_ignored(exchange_.ignored, lines);
  exchange_.writer->start_stream(lines);
}

HttpHeaders HttpAnswer::headers() const {
  return {{"X-Sluice-Seed", std::to_string(static_cast<int64_t>(request_->seed))}};
}

// As a status while nothing is sent, as an event later.
void HttpAnswer::fail(const Error& error) {
  if (!streaming_) return front_end_.fail(exchange_, error);
  events_ = "data: " + error_json(error) + "\n\n";
  events_ += kDoneEvent;
  exchange_.writer->write(events_);
  exchange_.writer->finish_stream();
  front_end_.log_request(exchange_, http_status(error.code));
}

void HttpAnswer::client_left() {
  constexpr int kClientClosedRequest = 499;
  front_end_.log_request(exchange_, kClientClosedRequest);
  if (streaming_) return;
  front_end_.http_counters.count(exchange_.route_idx, kClientClosedRequest);
}

}  // namespace sluice
