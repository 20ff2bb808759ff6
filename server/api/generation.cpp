// SPDX-License-Identifier: Apache-2.0
#include "server/api/generation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/core/log.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/generation_span.h"
#include "server/front/io_worker.h"

namespace sluice {
namespace {

bool contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Returns at most `most` bytes of the text, and no part of a character.
std::string_view first_characters(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  const auto continues = [&](size_t at) { return (text[at] & 0xC0) == 0x80; };
  while (most > 0 && continues(most)) --most;
  return text.substr(0, most);
}

// Logs a line for each prompt with its text, if prompts are logged.
void log_prompts(const FrontEnd& front_end,
                 const std::string& request_id,
                 const GenerationRequest& request) {
  const Config& config = front_end.config;
  if (!config.enable_log_prompts) return;
  const auto most = config.max_log_len > 0 ? static_cast<size_t>(config.max_log_len)
                                           : std::numeric_limits<size_t>::max();
  const Tokenizer& tokenizer = request.served->engine.tokenizer();
  for (size_t i = 0; i < request.requests.size(); i += static_cast<size_t>(request.num_choices)) {
    const std::vector<TokenId>& ids = request.requests[i].prompt;
    std::string text;
    for (size_t k = 0; k < ids.size() && text.size() <= most; ++k) {
      text += tokenizer.token_bytes(ids[k]);
    }
    LogLine line(LogLevel::kInfo, "prompt");
    line.add("id", request_id).add("tokens", ids.size());
    line.add("text", first_characters(text, most));
    add_trace(request.trace, line);
    line.emit();
  }
}

}  // namespace

Generation::Choice::Choice(const Tokenizer& tokenizer, const GenerationRequest& request)
    : output(tokenizer, request) {}

Generation::Generation(FrontEnd& front_end,
                       std::shared_ptr<Answer> answer,
                       GenerationRequest request)
    : front_end_(front_end),
      answer_(std::move(answer)),
      request_(std::move(request)),
      span_(front_end.tracer, request_.trace, request_.requests.front().arrival),
      engine_(request_.served->engine),
      tokenizer_(engine_.tokenizer()),
      max_tokens_(request_.requests.front().sampling.max_tokens) {
  const SamplingParams& sampling = request_.requests.front().sampling;
  if (sampling.ignore_eos) own_end_tokens_ = sampling.stop_token_ids;
  num_open_ = request_.requests.size();
  choices_.reserve(num_open_);
  for (size_t i = 0; i < num_open_; ++i) {
    const auto& ids = request_.requests[i].prompt;
    choices_.emplace_back(tokenizer_, request_);
    const size_t prompt_idx = i / static_cast<size_t>(request_.num_choices);
    const auto& handoff = request_.requests[i].handoff;
    if (handoff && handoff->kind == HandoffKind::kOffer) {
      choices_[i].prompt_digest = prompt_digest(ids);
    }
    if (!request_.echoed.empty()) choices_[i].echoed = request_.echoed[prompt_idx];
    if (i % static_cast<size_t>(request_.num_choices) == 0) {
      prompt_tokens_ += static_cast<int64_t>(ids.size());
    }
  }
  describe_request(request_, span_);
  request_.trace = span_.context();
  for (ValidRequest& one : request_.requests) one.trace = request_.trace;
  answer_->prepare(request_);
  span_.add("gen_ai.request.id", answer_->request_id());
}

Generation::~Generation() = default;

void Generation::start() {
  front_end_.note_fallbacks(request_.fallbacks);
  log_prompts(front_end_, answer_->request_id(), request_);
  try {
    submit_choices();
  } catch (...) {  // its handler answers; outputs of earlier choices are nobody's
    abort_open_choices(FinishReason::kError);
    end();
    throw;
  }
}

void Generation::submit_choices() {
  IoWorker& worker = answer_->worker();
  for (size_t i = 0; i < choices_.size(); ++i) {
    auto id = engine_.submit(std::move(request_.requests[i]), worker);
    if (!id) return fail(id.error());
    choices_[i].id = *id;
    choices_[i].submitted = true;
    worker.watch(*id, shared_from_this(), i);
  }
  request_.requests.clear();
  answer_->attach(shared_from_this());
}

void Generation::accept(size_t choice_idx, const TokenOutput& output) {
  Choice& choice = choices_[choice_idx];
  if (done_ || choice.finish_reason != FinishReason::kNone) return;
  if (output.finish_reason == FinishReason::kError) {
    const Error error = error_of(output);
    if (send_error(error)) front_end_.note_lost(error);
    return;
  }
  if (output.finish_reason == FinishReason::kAbort) return fail(error_of(output));
  if (!output.prompt_logprobs.empty()) {
    answer_->add_prompt(choice_idx, output.prompt_logprobs);
    if (output.token == kInvalidToken && output.finish_reason == FinishReason::kNone) return;
  }
  choice.timings = output.timings;
  choice.num_accepted_predictions = output.num_accepted_predictions;
  choice.num_rejected_predictions = output.num_rejected_predictions;
  Pieces pieces;
  if (!choice.echoed.empty()) {
    append_text(pieces, PieceKind::kContent, -1, choice.echoed);
    choice.echoed.clear();
  }
  if (output.offer != nullptr) note_offer(choice, *output.offer);
  if (output.token != kInvalidToken) append_token(choice_idx, output, pieces);
  if (choice.finish_reason == FinishReason::kNone && output.finish_reason != FinishReason::kNone) {
    choice.output.finish(output.finish_reason, pieces);
    finish_choice(choice, request_.only_echo ? FinishReason::kLength : output.finish_reason);
    const bool is_end = contains(tokenizer_.end_tokens(), output.stop_token) &&
                        !contains(own_end_tokens_, output.stop_token);
    if (!is_end && !request_.only_echo) choice.stop_token = output.stop_token;
  }
  send_delta(choice_idx, pieces);
}

void Generation::append_token(size_t choice_idx, const TokenOutput& output, Pieces& pieces) {
  Choice& choice = choices_[choice_idx];
  if (choice.num_tokens == 0) choice.num_cached = output.num_cached_tokens;
  if (request_.only_echo) return;
  span_.note_token();
  ++choice.num_tokens;
  choice.sum_logprobs += output.logprob;
  answer_->add_token(choice_idx, output);
  // A token that ends the text is not part of it.
  const bool is_hidden = output.stop_token == output.token && !request_.stop.include_in_output;
  if (is_hidden) return choice.output.skip();
  const ChoiceOutput::Ending ending = choice.output.append(output.token, pieces);
  if (!ending.is_end()) return;
  if (ending.matched_stop >= 0) {
    choice.matched_stop = request_.stop.strings[static_cast<size_t>(ending.matched_stop)];
  }
  finish_choice(choice, FinishReason::kStop);
  if (output.finish_reason == FinishReason::kNone) engine_.abort(choice.id);
}

void Generation::note_offer(Choice& choice, const HandoffOffer& offer) {
  const ModelInfo& model = engine_.model();
  if (!model.handoff || choice.prompt_digest.empty()) return;
  choice.kv_params = offer_json(offer,
                                *model.handoff,
                                model.system_fingerprint,
                                choice.prompt_digest,
                                front_end_.config.tensor_parallel_size);
}

void Generation::finish_choice(Choice& choice, FinishReason reason) {
  choice.finish_reason = reason;
  if (request_.lease != nullptr) request_.lease->add_tokens(choice.num_tokens);
  front_end_.finish_counters.count(reason);
  choice.output.count(front_end_.answer_counters);
  --num_open_;
}

void Generation::send_delta(size_t choice_idx, std::span<const Piece> pieces) {
  const Choice& choice = choices_[choice_idx];
  ChoiceDelta delta;
  delta.choice_idx = choice_idx;
  delta.pieces = pieces;
  delta.finish_reason = choice.finish_reason;
  delta.matched_stop = choice.matched_stop;
  delta.stop_token = choice.stop_token;
  delta.has_called = choice.output.has_called();
  delta.is_named = request_.tools.is_named;
  delta.num_tokens = choice.num_tokens;
  delta.num_cached = choice.num_cached;
  delta.kv_params = choice.kv_params;
  answer_->add_delta(delta, usage());
}

// What each choice took, as far as it came.
void Generation::count_choices() const {
  RequestHistograms& histograms = front_end_.request_histograms;
  int64_t longest = 0;
  for (const Choice& choice : choices_) {
    longest = std::max(longest, choice.num_tokens);
    histograms.count_choice(max_tokens_, choice.num_tokens, choice.timings);
  }
  histograms.longest_choice.observe(kLengthBounds, static_cast<double>(longest));
  histograms.num_choices.observe(kChoiceBounds, request_.num_returned);
}

// No more tokens count. The client's key may be used again before it learns of the end.
void Generation::end() {
  done_ = true;
  count_choices();
  request_.lease.reset();
  if (!span_.is_recorded()) return;
  std::vector<std::string> reasons;
  for (const Choice& choice : choices_) reasons.emplace_back(to_string(choice.finish_reason));
  describe_end(usage(), std::move(reasons), span_);
  span_.end();
}

void Generation::flush() {
  if (done_) return;
  if (num_open_ > 0) return answer_->flush();
  end();
  answer_->finish(returned_choices(), usage());
}

// Returns each prompt's num_returned choices with the largest mean log-probability, best first; all
// choices in order if none is left out.
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

Usage Generation::usage() const {
  Usage usage;
  usage.prompt_tokens = prompt_tokens_;
  usage.has_prediction = request_.has_prediction;
  for (size_t i = 0; i < choices_.size(); ++i) {
    usage.completion_tokens += choices_[i].num_tokens;
    usage.reasoning_tokens += choices_[i].output.num_reasoning_tokens();
    usage.accepted_prediction_tokens += choices_[i].num_accepted_predictions;
    usage.rejected_prediction_tokens += choices_[i].num_rejected_predictions;
    const RequestTimings& timings = choices_[i].timings;
    usage.timings.queued_ms = std::max(usage.timings.queued_ms, timings.queued_ms);
    usage.timings.prefill_ms = std::max(usage.timings.prefill_ms, timings.prefill_ms);
    usage.timings.decode_ms = std::max(usage.timings.decode_ms, timings.decode_ms);
    usage.timings.num_preemptions += timings.num_preemptions;
    // The first choice of a prompt: the others find what it has just computed.
    if (i % static_cast<size_t>(request_.num_choices) == 0) {
      usage.cached_tokens += choices_[i].num_cached;
    }
  }
  return usage;
}

void Generation::fail(const Error& error) {
  if (!done_) send_error(error);
}

bool Generation::send_error(const Error& error) {
  abort_open_choices(FinishReason::kError);
  span_.set_error(error);
  end();
  return answer_->fail(error);
}

void Generation::abort() {
  if (done_) return;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].finish_reason != FinishReason::kNone) continue;
    Pieces rest;
    choices_[i].output.finish(FinishReason::kAbort, rest);
    finish_choice(choices_[i], FinishReason::kAbort);
    engine_.abort(choices_[i].id);
    send_delta(i, rest);
  }
  flush();
}

void Generation::abort_open_choices(FinishReason reason) {
  for (Choice& choice : choices_) {
    if (choice.finish_reason != FinishReason::kNone || !choice.submitted) continue;
    finish_choice(choice, reason);
    engine_.abort(choice.id);
  }
}

void Generation::cancel() {
  if (done_) return;
  abort_open_choices(FinishReason::kAbort);
  end();
  answer_->client_left();
}

}  // namespace sluice
