// SPDX-License-Identifier: Apache-2.0
#include "server/load/client_connection.h"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <charconv>

#include "server/load/completion_event.h"

namespace sluice::load {

using boost::system::error_code;
using Status = client::ResponseParser::Status;

namespace {

constexpr size_t kSmallBuffer = 2 << 10;  // small for many idle streams; grows for busy ones
constexpr size_t kLargeBuffer = 64 << 10;
constexpr std::string_view kDone = "[DONE]";  // data of a stream's last event
constexpr size_t kShownBytes = 200;           // of a body or an event in an error message

std::string shown(std::string_view text) {
  std::string line(text.substr(0, kShownBytes));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return line;
}

bool is_stream(const client::ResponseHead& head) {
  return head.field("content-type").starts_with("text/event-stream");
}

// Returns the seconds of Retry-After; -1: not given, or a date.
double retry_after(const client::ResponseHead& head) {
  const std::string_view value = head.field("retry-after");
  double seconds = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  return error == std::errc() && end == value.data() + value.size() && seconds >= 0 ? seconds : -1;
}

}  // namespace

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kNone:
      return "none";
    case ErrorKind::kConnect:
      return "connect";
    case ErrorKind::kTls:
      return "tls";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kNoAnswer:
      return "no_answer";
    case ErrorKind::kDied:
      return "died_mid_stream";
    case ErrorKind::kHalfFrame:
      return "half_frame";
    case ErrorKind::kTruncated:
      return "truncated";
    case ErrorKind::kBadHttp:
      return "bad_http";
    case ErrorKind::kNoToken:
      return "no_token";
    case ErrorKind::kBadJson:
      return "bad_json";
    case ErrorKind::kServerError:
      return "server_error";
    case ErrorKind::kRateLimited:
      return "rate_limited";
    case ErrorKind::kHttpStatus:
      return "http_status";
    case ErrorKind::kInterrupted:
      return "interrupted";
  }
  return "none";
}

Connection::Connection(client::StreamFactory& factory,
                       ConnectionOwner& owner,
                       Clock::time_point run_start)
    : factory_(factory), owner_(owner), run_start_(run_start), buffer_(kSmallBuffer) {}

Connection::~Connection() { drop_stream(); }

double Connection::seconds(Clock::time_point time) const {
  return std::chrono::duration<double>(time - run_start_).count();
}

void Connection::start(std::unique_ptr<Exchange> exchange) {
  exchange_ = std::move(exchange);
  busy_ = true;
  now_ = last_progress_ = Clock::now();
  exchange_->record.sent = seconds(now_);
  last_text_ = kNever;
  reused_ = stream_ != nullptr;
  if (reused_) {
    send();
  } else {
    open();
  }
}

void Connection::open() {
  stream_ = factory_.create(*this);
  connecting_ = true;
  owner_.on_connect_begin();
  stream_->connect();
}

void Connection::on_connected() {
  connecting_ = false;
  owner_.on_connect_end();
  send();
}

void Connection::on_connect_failed(const std::string& reason, bool in_handshake) {
  connecting_ = false;
  owner_.on_connect_end();
  drop_stream();
  note_failure(in_handshake ? ErrorKind::kTls : ErrorKind::kConnect, reason);
  finish();
}

void Connection::send() {
  client::ResponseSink& sink = *this;
  parser_ = std::make_unique<client::ResponseParser>(sink);
  events_.reset();
  num_unparsed_ = 0;
  is_event_stream_ = false;
  stream_->write(exchange_->request);
}

// Reads the answer even after an error: a server that refuses a request may close early.
void Connection::on_written(error_code) {
  last_progress_ = Clock::now();
  read_more();
}

void Connection::read_more() {
  if (num_unparsed_ == buffer_.size()) buffer_.resize(buffer_.size() * 2);
  stream_->read(std::span(buffer_).subspan(num_unparsed_));
}

void Connection::on_read(error_code error, size_t num_bytes) {
  now_ = last_progress_ = Clock::now();
  if (error) return on_end_of_file(error);
  num_unparsed_ += num_bytes;
  if (num_unparsed_ == buffer_.size() && buffer_.size() < kLargeBuffer) {
    buffer_.resize(buffer_.size() * 2);
  }
  parse();
}

void Connection::parse() {
  size_t consumed = 0;
  const auto status = parser_->feed({buffer_.data(), num_unparsed_}, consumed);
  std::copy(buffer_.begin() + static_cast<ptrdiff_t>(consumed),
            buffer_.begin() + static_cast<ptrdiff_t>(num_unparsed_),
            buffer_.begin());
  num_unparsed_ -= consumed;
  if (!exchange_->record.is_ok()) {  // an event reported an error
    drop_stream();
    return finish();
  }
  switch (status) {
    case Status::kMore:
      return read_more();
    case Status::kDone:
      return on_answer_end();
    case Status::kBad:
      note_failure(ErrorKind::kBadHttp, parser_->error());
      drop_stream();
      return finish();
  }
}

void Connection::on_end_of_file(error_code error) {
  drop_stream();
  const bool has_begun = parser_->has_begun();
  // A server may close a kept-alive connection just when the next request arrives; that is no
  // answer to it. The request is sent again on a new connection and keeps its start time.
  if (!has_begun && reused_) {
    reused_ = false;
    return open();
  }
  const bool in_order = error == boost::asio::error::eof;
  const std::string how = in_order ? "connection closed" : error.message();
  if (!has_begun) {
    note_failure(ErrorKind::kNoAnswer, how + " before the first byte of an answer");
    return finish();
  }
  if (in_order && parser_->end_of_file() == Status::kDone) return on_answer_end();
  const bool half = events_.is_inside_event() && is_event_stream_;
  note_failure(half ? ErrorKind::kHalfFrame : ErrorKind::kDied,
               how + (half ? " inside an event" : " in the middle of an answer"));
  finish();
}

void Connection::on_answer_end() {
  if (!parser_->keeps_alive() || num_unparsed_ > 0) drop_stream();
  if (is_event_stream_) {
    judge_stream();
  } else {
    judge_body();
  }
  if (!exchange_->is_plain) judge_tokens();
  finish();
}

// Judges the tokens. Those without text are known from usage, and still have an event.
void Connection::judge_tokens() {
  const Record& record = exchange_->record;
  const bool has_token =
      record.has_vectors || record.num_text_chunks > 0 ||
      (record.first_chunk >= 0 && record.completion_tokens > 0);
  if (record.is_ok() && !has_token) note_failure(ErrorKind::kNoToken, "an answer without a token");
}

void Connection::judge_stream() {
  Record& record = exchange_->record;
  if (!record.is_ok()) return;
  // Some servers end the stream right after its last event, without the empty line.
  if (events_.unended_data() == kDone) {
    record.is_done = true;
  } else if (events_.is_inside_event()) {
    note_failure(ErrorKind::kHalfFrame, "the answer ended inside an event");
  } else if (!record.is_done && !record.is_finished) {
    note_failure(ErrorKind::kTruncated, "the stream ended without finish_reason and [DONE]");
  }
}

void Connection::judge_body() {
  Record& record = exchange_->record;
  const std::string_view body = without_byte_order_mark(exchange_->body);
  CompletionEvent event;
  const bool is_json = read_completion_event(body, event);
  const int status = parser_->head().status;
  if (status != 200) {
    const std::string detail =
        is_json && event.has_error ? std::string(event.error) : std::string(body);
    if (status == 429) record.retry_after = retry_after(parser_->head());
    note_failure(status == 429 ? ErrorKind::kRateLimited : ErrorKind::kHttpStatus,
                 "HTTP " + std::to_string(status) + (detail.empty() ? "" : ": " + shown(detail)));
  } else if (exchange_->is_plain) {
    return;
  } else if (!is_json) {
    note_failure(ErrorKind::kBadJson, "an answer that is no JSON object: " + shown(body));
  } else {
    on_event(body);
  }
}

Expected<void> Connection::on_head(const client::ResponseHead& head) {
  is_event_stream_ = is_stream(head) && head.status == 200;
  exchange_->record.status = head.status;
  return {};
}

Expected<void> Connection::on_body(std::string_view bytes) {
  if (is_event_stream_) {
    if (!events_.feed(bytes, *this)) {
      note_failure(ErrorKind::kBadJson, "an event of more than 16 MiB");
    }
  } else if (exchange_->body.size() < kMaxBodyBytes) {
    exchange_->body += bytes.substr(0, kMaxBodyBytes - exchange_->body.size());
  }
  return {};
}

void Connection::on_event(std::string_view data) {
  Record& record = exchange_->record;
  if (!record.is_ok()) return;
  if (data.empty() || data == "null") return;  // some servers send these to keep a stream alive
  if (data == kDone) {
    record.is_done = true;
    return;
  }
  CompletionEvent event;
  if (!read_completion_event(data, event)) {
    return note_failure(ErrorKind::kBadJson, "an event that is no JSON object: " + shown(data));
  }
  if (event.has_error) return note_failure(ErrorKind::kServerError, shown(event.error));
  if (event.prompt_tokens >= 0) record.prompt_tokens = event.prompt_tokens;
  if (event.completion_tokens >= 0) record.completion_tokens = event.completion_tokens;
  if (event.cached_tokens >= 0) record.cached_tokens = event.cached_tokens;
  if (event.has_vectors) {  // which has no tokens
    record.has_vectors = true;
    record.completion_tokens = record.requested_tokens = 0;
  }
  if (!event.has_choices && !event.has_vectors) return;
  const double at = seconds(now_);
  if (record.first_chunk < 0) record.first_chunk = at;
  record.last_token = at;
  record.is_finished = record.is_finished || event.is_finished;
  if (!event.has_text) return;
  if (record.first_token < 0) {
    record.first_token = at;
    record.gaps.reserve(static_cast<size_t>(std::clamp(record.requested_tokens, 1, 1 << 12)));
  } else {
    record.gaps.push_back(static_cast<float>(at - last_text_));
  }
  last_text_ = at;
  ++record.num_text_chunks;
  if (exchange_->keep_text) record.text += event.text;
}

void Connection::note_failure(ErrorKind kind, std::string message) {
  exchange_->record.error = kind;
  exchange_->record.error_message = std::move(message);
}

void Connection::abandon(ErrorKind kind, std::string message) {
  if (!busy_) return;
  if (connecting_) {
    connecting_ = false;
    owner_.on_connect_end();
  }
  drop_stream();
  note_failure(kind, std::move(message));
  now_ = Clock::now();
  finish();
}

void Connection::drop_stream() {
  if (stream_ != nullptr) stream_->close();
  stream_.reset();
}

void Connection::finish() {
  busy_ = false;
  exchange_->record.end = seconds(now_);
  owner_.on_exchange_end(*this);
}

}  // namespace sluice::load
