// SPDX-License-Identifier: Apache-2.0
#include "server/api/http_answer.h"

#include <string_view>
#include <utility>

#include "engine/core/log.h"
#include "server/api/generation.h"
#include "server/http/api_errors.h"

namespace sluice {

HttpAnswer::HttpAnswer(FrontEnd& front_end, Exchange exchange, std::unique_ptr<AnswerFormat> format)
    : front_end_(front_end), exchange_(std::move(exchange)), format_(std::move(format)) {
  // A client that sent no name for the request finds it in the log by the answer's.
  if (exchange_.request.names_itself) return;
  exchange_.request.request_id = format_->id();
  exchange_.writer->name_request(format_->id());
}

IoWorker& HttpAnswer::worker() { return exchange_.writer->worker(); }

void HttpAnswer::prepare(const GenerationRequest& request) {
  request_ = &request;
  exchange_.request.trace = request.trace;
  format_->prepare(request);
}

void HttpAnswer::attach(std::shared_ptr<Generation> generation) {
  // The generation holds this answer.
  exchange_.writer->set_callbacks([generation] { generation->cancel(); },
                                  [this, generation] { ping(); });
}

void HttpAnswer::ping() {
  if (!request_->stream) return;
  begin_stream();
  events_.clear();
  format_->append_ping(events_);
  exchange_.writer->write(events_);
  exchange_.writer->flush();
}

void HttpAnswer::add_prompt(size_t choice_idx, std::span<const PromptLogprob> scored) {
  format_->add_prompt(choice_idx, scored);
}

void HttpAnswer::add_token(size_t choice_idx, const TokenOutput& output) {
  format_->add_token(choice_idx, output);
}

void HttpAnswer::add_delta(const ChoiceDelta& delta, const Usage& usage) {
  exchange_.usage = usage;
  if (delta.finish_reason != FinishReason::kNone) note_end(finish_name(delta));
  if (!request_->stream) return format_->keep(delta);
  events_.clear();
  format_->append_events(delta, usage, events_);
  if (events_.empty()) return;
  begin_stream();
  exchange_.writer->write(events_);
}

void HttpAnswer::flush() {
  if (streaming_) exchange_.writer->flush();
}

void HttpAnswer::finish(std::span<const size_t> returned, const Usage& usage) {
  again_ = nullptr;  // the key may be used again before the client learns of the end
  exchange_.usage = usage;  // what was left out counts
  if (!request_->stream) {
    HttpResponse response;
    response.headers = headers();
    response.body = format_->whole(returned, usage);
    return front_end_.respond(exchange_, std::move(response));
  }
  begin_stream();
  // Usage and the end leave in one write: proxies read usage out of the last piece of body.
  events_.clear();
  format_->append_end(usage, events_);
  write_last_events();
  front_end_.log_request(exchange_, 200);
}

// Notes for the log how a choice ended, or all that were open.
void HttpAnswer::note_end(std::string_view reason) {
  if (!exchange_.finish_reasons.empty()) exchange_.finish_reasons += ',';
  exchange_.finish_reasons += reason;
}

void HttpAnswer::begin_stream() {
  if (streaming_) return;
  streaming_ = true;
  again_ = nullptr;
  std::string().swap(exchange_.request.body);
  front_end_.http_counters.count(exchange_.route_idx, 200);
  HttpHeaders lines = headers();
  add_ignored(exchange_.ignored, lines);
  exchange_.writer->start_stream(lines);
}

void HttpAnswer::write_last_events() {
  exchange_.writer->write(events_);
  exchange_.writer->finish_stream();
}

HttpHeaders HttpAnswer::headers() const {
  return {{"X-Sluice-Seed", std::to_string(static_cast<int64_t>(request_->seed))}};
}

// Sends the error as a status while nothing is sent, as an event later.
bool HttpAnswer::fail(const Error& error) {
  if (again_ && error.code == ErrorCode::kUnavailable && front_end_.has_left(*request_->served)) {
    log_event(LogLevel::kInfo,
              "request_moved",
              "id",
              request_id(),
              "from",
              request_->served->engine.model().system_fingerprint);
    exchange_.finish_reasons.clear();
    const auto again = std::move(again_);  // may release this answer
    again(std::move(exchange_));
    return false;
  }
  again_ = nullptr;
  note_end(to_string(FinishReason::kError));
  if (streaming_) {
    events_.clear();
    format_->append_error(error, events_);
    write_last_events();
    front_end_.log_request(exchange_, http_status(error.code));
  } else {
    front_end_.fail(exchange_, error);
  }
  return true;
}

void HttpAnswer::client_left() {
  constexpr int kClientClosedRequest = 499;
  again_ = nullptr;
  note_end(to_string(FinishReason::kAbort));
  front_end_.log_request(exchange_, kClientClosedRequest);
  if (streaming_) return;
  front_end_.http_counters.count(exchange_.route_idx, kClientClosedRequest);
}

}  // namespace sluice
