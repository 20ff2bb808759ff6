// SPDX-License-Identifier: Apache-2.0
// One HTTP/1.1 connection of the load client, kept alive from one exchange to the next. It reads
// the stream of a completion into a Record, or any other answer into a body.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/http/client/response.h"
#include "server/http/client/stream.h"
#include "server/load/record.h"
#include "server/load/sse_parser.h"

namespace sluice::load {

using Clock = std::chrono::steady_clock;

class Connection;

class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  // The exchange is over; its record holds the outcome. The connection may start another one at
  // once.
  virtual void on_exchange_end(Connection& connection) = 0;
  // Called before and after every attempt to connect.
  virtual void on_connect_begin() = 0;
  virtual void on_connect_end() = 0;
};

struct Exchange {
  std::string request;  // head and body as sent
  Record record;
  bool keep_text = false;
  bool is_plain = false;  // any answer with status 200 will do; it goes to `body`
  std::string body;       // an answer without events, at most kMaxBodyBytes
};

class Connection final : client::StreamEvents, client::ResponseSink, SseSink {
 public:
  static constexpr size_t kMaxBodyBytes = 4 << 20;

  Connection(client::StreamFactory& factory, ConnectionOwner& owner, Clock::time_point run_start);
  ~Connection() override;

  // Starts an exchange; never called while another runs.
  void start(std::unique_ptr<Exchange> exchange);

  // Returns the finished exchange; called in on_exchange_end().
  std::unique_ptr<Exchange> take_exchange() { return std::move(exchange_); }

  // Ends the exchange with `kind`.
  void abandon(ErrorKind kind, std::string message);

  [[nodiscard]] bool is_open() const { return stream_ != nullptr; }

  [[nodiscard]] bool is_busy() const { return busy_; }

  // Returns the time of the last byte in either direction, or of the start.
  [[nodiscard]] Clock::time_point last_progress() const { return last_progress_; }

 private:
  void on_connected() override;
  void on_connect_failed(const std::string& reason, bool in_handshake) override;
  void on_written(boost::system::error_code error) override;
  void on_read(boost::system::error_code error, size_t num_bytes) override;
  Expected<void> on_head(const client::ResponseHead& head) override;
  Expected<void> on_body(std::string_view bytes) override;
  void on_event(std::string_view data) override;

  void open();
  void send();
  void read_more();
  void parse();
  void on_end_of_file(boost::system::error_code error);
  void on_answer_end();
  void judge_body();
  void judge_stream();
  void judge_tokens();
  void note_failure(ErrorKind kind, std::string message);
  void finish();
  void drop_stream();
  [[nodiscard]] double seconds(Clock::time_point time) const;

  client::StreamFactory& factory_;
  ConnectionOwner& owner_;
  const Clock::time_point run_start_;
  std::shared_ptr<client::Stream> stream_;  // also held by its pending handlers
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<client::ResponseParser> parser_;
  SseParser events_;
  std::vector<char> buffer_;
  size_t num_unparsed_ = 0;       // bytes at the front of buffer_
  bool is_event_stream_ = false;  // the answer is, with status 200
  Clock::time_point now_;
  Clock::time_point last_progress_;
  double last_text_ = kNever;
  bool busy_ = false;
  bool connecting_ = false;
  bool reused_ = false;  // the stream had an exchange before this one
};

}  // namespace sluice::load
