// SPDX-License-Identifier: Apache-2.0
// How a connection answers, and ends without a request; connection.cpp reads.
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/status.hpp>
#include <cstdio>
#include <utility>

#include "server/http/connection.h"

namespace sluice {

namespace http = boost::beast::http;
using boost::system::error_code;

void Connection::give_up(HttpResponse response) {
  if (state_ != State::kHandling || response_complete_) return;
  if (has_begun_) return close();
  send(std::move(response));
}

void Connection::append_head(int status, const HttpHeaders& headers, std::string_view framing) {
  has_begun_ = true;
  if (owner_->is_leaving()) keep_alive_ = false;
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  pending_ += "HTTP/1.1 " + std::to_string(status) + " ";
  pending_.append(reason.data(), reason.size());
  pending_ += "\r\nServer: sluice\r\n";
  pending_ += cors_lines_;
  pending_ += framing;
  pending_ += "X-Request-Id: " + request_id_ + "\r\n";
  if (is_anthropic_) pending_ += "Request-Id: " + request_id_ + "\r\n";
  for (const auto& [name, value] : headers) pending_ += name + ": " + value + "\r\n";
  pending_ += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
}

void Connection::send(HttpResponse response) {
  if (state_ != State::kHandling) return;
  if (response.close) keep_alive_ = false;
  std::string framing;
  if (response.status != 204) {
    framing = "Content-Type: " + response.content_type +
              "\r\nContent-Length: " + std::to_string(response.body.size()) + "\r\n";
  }
  append_head(response.status, response.headers, framing);
  if (!is_head_) pending_ += response.body;
  complete_response();
}

void Connection::start_stream(const HttpHeaders& headers) {
  if (state_ != State::kHandling) return;
  if (!use_chunks_) keep_alive_ = false;
  std::string framing =
      "Content-Type: text/event-stream; charset=utf-8\r\n"
      "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  if (use_chunks_) framing += "Transfer-Encoding: chunked\r\n";
  append_head(200, headers, framing);
}

void Connection::write(std::string_view bytes) {
  if (state_ == State::kHandling) chunk_ += bytes;
}

bool Connection::flush() {
  if (state_ != State::kHandling) return false;
  // Bytes that earlier calls left unsent count: a single event may be larger than the bound.
  if (pending_.size() > limits_.max_stream_buffer_bytes && writing_) {
    close();
    return false;
  }
  if (!chunk_.empty()) {
    if (use_chunks_) {
      char size[20];
      const int length = std::snprintf(size, sizeof size, "%zx\r\n", chunk_.size());
      pending_.append(size, static_cast<size_t>(length));
      pending_ += chunk_;
      pending_ += "\r\n";
    } else {
      pending_ += chunk_;
    }
    chunk_.clear();
  }
  start_write();
  return state_ == State::kHandling;
}

void Connection::finish_stream() {
  if (!flush()) return;
  if (use_chunks_) pending_ += "0\r\n\r\n";
  complete_response();
}

void Connection::complete_response() {
  response_complete_ = true;
  on_disconnect_ = nullptr;
  on_quiet_ = nullptr;
  start_write();
  if (!writing_ && state_ == State::kHandling) after_response();
}

void Connection::set_callbacks(std::function<void()> on_disconnect,
                               std::function<void()> on_quiet) {
  on_disconnect_ = std::move(on_disconnect);
  on_quiet_ = std::move(on_quiet);
}

void Connection::start_write() {
  if (writing_ || state_ == State::kClosed) return;
  if (num_sent_ == outgoing_.size()) {
    outgoing_.clear();
    num_sent_ = 0;
    append_outgoing();
    if (outgoing_.empty()) return;
    last_write_ = Clock::now();
  }
  writing_ = true;
  socket_.async_write_some(
      boost::asio::buffer(outgoing_.data() + num_sent_, outgoing_.size() - num_sent_),
      [self = shared_from_this()](const error_code& error, size_t num_bytes) {
        self->writing_ = false;
        if (error) return self->close();
        self->on_written(num_bytes);
      });
}

// Moves everything pending to the outgoing bytes, encrypted if the connection is TLS.
void Connection::append_outgoing() {
  if (tls_ == nullptr) {
    outgoing_.swap(pending_);
    return;
  }
  outgoing_.swap(tls_reply_);
  if (!tls_->is_established()) return;
  tls_->send(pending_, outgoing_);
  pending_.clear();
  if (state_ == State::kHandling && response_complete_ && !keep_alive_) tls_->close(outgoing_);
}

void Connection::on_written(size_t num_bytes) {
  if (state_ == State::kClosed) return;
  num_sent_ += num_bytes;
  last_write_ = Clock::now();
  last_activity_ = last_write_;
  start_write();
  if (!writing_ && state_ == State::kHandling && response_complete_) after_response();
}

// Ends a connection without a request, unless bytes of one have come, which are answered, or the
// last answer is on its way: the next look at its deadlines finds it idle.
void Connection::end_idle() {
  error_code error;
  if (writing_ || (socket_.available(error) > 0 && !error)) return;
  if (tls_ != nullptr && tls_->is_established()) {
    std::string notice;
    tls_->close(notice);
    socket_.write_some(boost::asio::buffer(notice), error);  // the connection ends either way
  }
  linger();
}

}  // namespace sluice
