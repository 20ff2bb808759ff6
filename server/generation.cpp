// SPDX-License-Identifier: Apache-2.0
#include "server/generation.h"

#include <openssl/rand.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "server/api_errors.h"
#include "server/io_worker.h"
#include "server/json_writer.h"
#include "server/prompt.h"

namespace sluice {
namespace {

std::string random_id(std::string_view prefix) {
  unsigned char bytes[16];
  CHECK_EQ(RAND_bytes(bytes, sizeof bytes), 1);
  constexpr char kHex[] = "0123456789abcdef";
  std::string id(prefix);
  for (const unsigned char byte : bytes) {
    id += kHex[byte >> 4];
    id += kHex[byte & 15];
  }
  return id;
}

bool contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Generation::Choice::Choice(const Tokenizer& tokenizer, const GenerationRequest& request)
    : detokenizer(tokenizer, request.stop, request.skip_special_tokens),
      logprobs(tokenizer, request.endpoint, request.skip_special_tokens),
      prompt_logprobs(tokenizer) {}

Generation::Generation(FrontEnd& front_end, Exchange exchange, GenerationRequest request)
    : front_end_(front_end),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      tokenizer_(front_end.engine.tokenizer()),
      format_(request_.endpoint,
              random_id(request_.endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-"),
              static_cast<int64_t>(std::time(nullptr)),
              request_.model,
              front_end.engine.model().system_fingerprint) {
  const SamplingParams& sampling = request_.requests.front().sampling;
  ignore_eos_ = sampling.ignore_eos;
  wants_logprobs_ = request_.wants_logprobs;
  num_open_ = request_.requests.size();
  choices_.reserve(num_open_);
  for (size_t i = 0; i < num_open_; ++i) {
    const auto& ids = request_.requests[i].prompt.front().token_ids;
    choices_.emplace_back(tokenizer_, request_);
    if (request_.return_token_ids) prompts_.push_back(ids);
    const size_t prompt_idx = i / static_cast<size_t>(request_.num_choices);
    if (!request_.echoed.empty()) choices_[i].echoed = request_.echoed[prompt_idx];
    if (request_.num_echoed_logprobs >= 0) start_echo(choices_[i], ids.front());
    if (i % static_cast<size_t>(request_.num_choices) == 0) {
      prompt_tokens_ += static_cast<int64_t>(ids.size());
    }
  }
}

Generation::~Generation() = default;

void Generation::start_echo(Choice& choice, TokenId first) {
  choice.logprobs.start_prompt(first, !is_hidden_bos(tokenizer_, first));
}

void Generation::start() {
  IoWorker& worker = exchange_.writer->worker();
  for (size_t i = 0; i < choices_.size(); ++i) {
    auto id = front_end_.engine.submit(std::move(request_.requests[i]), worker);
    if (!id) return fail(id.error());
    choices_[i].id = *id;
    choices_[i].submitted = true;
    worker.watch(*id, shared_from_this(), i);
  }
  request_.requests.clear();
  exchange_.writer->set_callbacks([self = shared_from_this()] { self->cancel(); },
                                  [self = shared_from_this()] {
                                    if (!self->request_.stream) return;
                                    self->begin_stream();
                                    self->exchange_.writer->write(": ping\n\n");
                                    self->exchange_.writer->flush();
                                  });
}

void Generation::accept(size_t choice_idx, const TokenOutput& output) {
  Choice& choice = choices_[choice_idx];
  if (done_ || choice.finished) return;
  if (output.finish_reason == FinishReason::kError) {
    return fail(Error{ErrorCode::kInternal, output.error, {}, {}});
  }
  if (output.finish_reason == FinishReason::kAbort) {
    return fail(Error{ErrorCode::kUnavailable, "The server is shutting down.", {}, {}});
  }
  if (!output.prompt_logprobs.empty()) return append_prompt(choice, output);
  std::string text;
  if (output.token != kInvalidToken) append_token(choice, output, text);
  if (!choice.finished && output.finish_reason != FinishReason::kNone) {
    text += choice.detokenizer.finish();
    finish_choice(choice, request_.only_echo ? FinishReason::kLength : output.finish_reason);
    if (!request_.only_echo && output.stop_token != kInvalidToken) {
      const bool is_end = !ignore_eos_ && contains(tokenizer_.end_tokens(), output.stop_token);
      if (!is_end) choice.stop_reason = std::to_string(output.stop_token);
    }
  }
  if (!choice.echoed.empty()) {
    text.insert(0, choice.echoed);
    choice.echoed.clear();
  }
  if (request_.stream) {
    write_event(choice_idx, text);
  } else {
    choice.text += text;
  }
}

void Generation::append_prompt(Choice& choice, const TokenOutput& output) {
  for (const PromptLogprob& scored : output.prompt_logprobs) {
    if (request_.num_echoed_logprobs >= 0) {
      choice.logprobs.append_prompt(scored, request_.num_echoed_logprobs);
    }
    if (request_.num_prompt_logprobs >= 0) {
      choice.prompt_logprobs.append(scored, request_.num_prompt_logprobs);
    }
  }
}

void Generation::append_token(Choice& choice, const TokenOutput& output, std::string& text) {
  if (request_.only_echo) return;
  if (choice.num_tokens == 0) choice.num_cached = output.num_cached_tokens;
  ++choice.num_tokens;
  choice.sum_logprobs += output.logprob;
  if (wants_logprobs_) choice.logprobs.append(output);
  if (request_.return_token_ids) choice.token_ids.push_back(output.token);
  // A token that ends the text is no part of it.
  const bool is_hidden = output.stop_token == output.token && !request_.stop.include_in_output;
  if (is_hidden) return;
  Detokenizer::Result result = choice.detokenizer.append(output.token);
  text = std::move(result.text);
  if (result.matched_stop < 0) return;
  choice.stop_reason.clear();
  append_json_string(choice.stop_reason,
                     request_.stop.strings[static_cast<size_t>(result.matched_stop)]);
  finish_choice(choice, FinishReason::kStop);
  if (output.finish_reason == FinishReason::kNone) front_end_.engine.abort(choice.id);
}

void Generation::finish_choice(Choice& choice, FinishReason reason) {
  choice.finished = true;
  choice.finish_reason = to_string(reason);
  front_end_.finish_counters.count(reason);
  --num_open_;
}

void Generation::write_event(size_t choice_idx, const std::string& text) {
  Choice& choice = choices_[choice_idx];
  if (text.empty() && choice.logprobs.empty() && !choice.finished) return;
  begin_stream();
  events_.clear();
  const bool wants_usage = request_.include_usage;
  const Usage now = usage();
  const Usage* shown_usage = request_.continuous_usage_stats ? &now : nullptr;
  if (!choice.has_role && request_.endpoint == Endpoint::kChat) {
    format_.append_role_event(events_, choice_idx, wants_usage, shown_usage);
  }
  choice.has_role = true;
  const std::string logprobs = choice.logprobs.empty() ? "" : choice.logprobs.take();
  ChoiceText piece;
  piece.index = choice_idx;
  piece.text = text;
  piece.logprobs = logprobs;
  piece.finish_reason = choice.finish_reason;
  piece.stop_reason = choice.stop_reason;
  if (request_.return_token_ids) piece.token_ids = &choice.token_ids;
  format_.append_event(events_, piece, wants_usage, shown_usage);
  choice.token_ids.clear();
  exchange_.writer->write(events_);
}

void Generation::flush() {
  if (done_) return;
  if (num_open_ > 0) {
    if (streaming_) exchange_.writer->flush();
    return;
  }
  done_ = true;
  if (request_.stream) {
    finish_stream();
  } else {
    send_whole();
  }
}

// Of each prompt the num_returned choices with the largest mean log-probability, best first; all in
// order where none is left out.
std::vector<size_t> Generation::returned_choices() const {
  const auto num_choices = static_cast<size_t>(request_.num_choices);
  const auto num_returned = static_cast<size_t>(request_.num_returned);
  const auto mean_logprob = [this](size_t i) {
    return choices_[i].sum_logprobs /
           static_cast<double>(std::max<int64_t>(choices_[i].num_tokens, 1));
  };
  std::vector<size_t> returned;
  for (size_t begin = 0; begin < choices_.size(); begin += num_choices) {
    std::vector<size_t> order;
    for (size_t i = begin; i < begin + num_choices; ++i) order.push_back(i);
    if (num_returned < num_choices) {
      std::ranges::stable_sort(
          order, [&](size_t a, size_t b) { return mean_logprob(a) > mean_logprob(b); });
    }
    returned.insert(returned.end(), order.begin(), order.begin() + request_.num_returned);
  }
  return returned;
}

void Generation::send_whole() {
  const std::vector<size_t> returned = returned_choices();
  std::vector<ChoiceText> texts(returned.size());
  std::vector<const std::vector<TokenId>*> prompts;
  std::vector<std::string> prompt_logprobs;  // by prompt; its first choice has them
  for (size_t i = 0; request_.num_prompt_logprobs >= 0 && i < choices_.size();
       i += static_cast<size_t>(request_.num_choices)) {
    prompt_logprobs.push_back(choices_[i].prompt_logprobs.take());
  }
  for (size_t i = 0; i < returned.size(); ++i) {
    if (!prompts_.empty()) prompts.push_back(&prompts_[returned[i]]);
    Choice& choice = choices_[returned[i]];
    if (wants_logprobs_) choice.logprobs_json = choice.logprobs.take();
    texts[i].index = i;
    texts[i].text = choice.text;
    texts[i].logprobs = choice.logprobs_json;
    texts[i].finish_reason = choice.finish_reason;
    texts[i].stop_reason = choice.stop_reason;
    if (request_.return_token_ids) texts[i].token_ids = &choice.token_ids;
    if (!prompt_logprobs.empty()) {
      texts[i].prompt_logprobs =
          prompt_logprobs[returned[i] / static_cast<size_t>(request_.num_choices)];
    }
  }
  HttpResponse response;
  response.headers = headers();
  response.body = format_.whole(texts, prompts, usage());
  front_end_.respond(exchange_, std::move(response));
}

void Generation::finish_stream() {
  begin_stream();
  // Usage and the end leave in one write: proxies read usage out of the last piece of body.
  events_.clear();
  if (request_.include_usage) format_.append_usage_event(events_, usage());
  events_ += kDoneEvent;
  exchange_.writer->write(events_);
  exchange_.writer->finish_stream();
}

void Generation::begin_stream() {
  if (streaming_) return;
  streaming_ = true;
  front_end_.http_counters.count(exchange_.route_idx, 200);
  exchange_.writer->start_stream(headers());
}

HttpHeaders Generation::headers() const {
  return {{"X-Sluice-Seed", std::to_string(static_cast<int64_t>(request_.seed))}};
}

Usage Generation::usage() const {
  Usage usage;
  usage.prompt_tokens = prompt_tokens_;
  for (size_t i = 0; i < choices_.size(); ++i) {
    usage.completion_tokens += choices_[i].num_tokens;
    // The first choice of a prompt: the others find what it has just computed.
    if (i % static_cast<size_t>(request_.num_choices) == 0) {
      usage.cached_tokens += choices_[i].num_cached;
    }
  }
  return usage;
}

void Generation::fail(const Error& error) {
  if (done_) return;
  done_ = true;
  abort_open_choices(FinishReason::kError);
  if (!streaming_) return front_end_.fail(exchange_, error);
  events_ = "data: " + error_json(error) + "\n\n";
  events_ += kDoneEvent;
  exchange_.writer->write(events_);
  exchange_.writer->finish_stream();
}

void Generation::abort_open_choices(FinishReason reason) {
  for (Choice& choice : choices_) {
    if (choice.finished || !choice.submitted) continue;
    finish_choice(choice, reason);
    front_end_.engine.abort(choice.id);
  }
}

// The client is gone; there is nobody to answer.
void Generation::cancel() {
  if (done_) return;
  done_ = true;
  if (!streaming_) {
    constexpr int kClientClosedRequest = 499;
    front_end_.http_counters.count(exchange_.route_idx, kClientClosedRequest);
  }
  abort_open_choices(FinishReason::kAbort);
}

void start_generation(FrontEnd& front_end, Exchange exchange, Endpoint endpoint) {
  if (front_end.is_draining()) {
    return front_end.fail(exchange,
                          Error{ErrorCode::kUnavailable, "The server is draining.", {}, {}});
  }
  const ValidationContext context{front_end.config,
                                  front_end.engine.model(),
                                  front_end.engine.tokenizer(),
                                  front_end.chat_template ? &*front_end.chat_template : nullptr,
                                  front_end.model_names,
                                  front_end.next_seed(),
                                  exchange.tenant_salt,
                                  exchange.arrival};
  auto request = validate_generation(context, exchange.request.body, endpoint);
  if (!request) return front_end.fail(exchange, request.error());
  std::string().swap(exchange.request.body);
  std::make_shared<Generation>(front_end, std::move(exchange), std::move(*request))->start();
}

void handle_chat_completions(FrontEnd& front_end, Exchange exchange) {
  start_generation(front_end, std::move(exchange), Endpoint::kChat);
}

void handle_completions(FrontEnd& front_end, Exchange exchange) {
  start_generation(front_end, std::move(exchange), Endpoint::kCompletion);
}

}  // namespace sluice
