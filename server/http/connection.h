// SPDX-License-Identifier: Apache-2.0
// One HTTP/1.1 connection: bytes in, requests to the handler one at a time in order, bytes out. Its
// pending operations and its worker's list own it; only its worker's thread touches it.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/http/body_budget.h"
#include "server/http/cors.h"
#include "server/http/http_message.h"
#include "server/http/tls.h"

namespace sluice {

struct Config;

// A stream socket of any family: TCP or Unix.
using StreamSocket = boost::asio::generic::stream_protocol::socket;

// A larger body is parsed on another thread.
inline constexpr uint64_t kLargeBody = 256 << 10;

// Bounds of a connection, from the configuration.
struct ConnectionLimits {
  // `policy` outlives the limits.
  ConnectionLimits(const Config& config, const CorsPolicy& policy);

  const CorsPolicy& cors;
  uint64_t max_body_bytes;
  int32_t max_gzip_ratio;
  uint32_t max_header_bytes;
  size_t max_stream_buffer_bytes;
  std::chrono::seconds idle_timeout;
  std::chrono::seconds request_timeout;
  std::chrono::seconds write_timeout;
  std::chrono::seconds ping_interval;
};

class Connection;

// What a connection needs of its I/O thread, on which it calls all of this.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;

  // Returns false where the header alone decides the answer, which handle() then gives.
  virtual bool wants_body(const HttpRequest& header) = 0;
  // Whether answering may take as much as a large body does, whatever the body has.
  virtual bool is_costly(const HttpRequest& header) = 0;
  // Answers a request through `writer`, at once or later. Whatever is thrown is answered, too.
  virtual void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) = 0;
  // Called at the dispatch of every request, and at its last byte (or the connection's end).
  virtual void request_started() = 0;
  virtual void request_done() = 0;
  // Counts a response to input that could not be parsed.
  virtual void count_rejected(int status) = 0;
  // The connection has closed.
  virtual void remove(Connection& connection) = 0;

  // Returns the memory that incomplete bodies share.
  virtual BodyBudget& bodies() = 0;
  // Returns the thread that large bodies belong to, so that parsing them delays no other
  // connection; null: it is this one.
  virtual ConnectionOwner* large_bodies_owner() = 0;
  virtual boost::asio::io_context& context() = 0;
  // The connection has moved to another owner, which may already use it.
  virtual void forget(Connection& connection) = 0;
  // Takes over a connection; its owner forgets it unless this throws std::bad_alloc. Any thread.
  virtual void take_over(std::shared_ptr<Connection> connection) = 0;

  // Whether connections are to end after the answer that they wait for: the server goes.
  [[nodiscard]] virtual bool is_leaving() const = 0;
  // Returns how long a connection may have nothing to answer.
  [[nodiscard]] virtual std::chrono::seconds idle_timeout() const = 0;

  // Returns memory for one read, which the thread's connections share.
  virtual std::span<char> scratch() = 0;

  // Returns what the handlers get as ResponseWriter::worker().
  virtual IoWorker& worker() = 0;
};

class Connection final : public ResponseWriter, public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  // A reserved connection is beyond the others' limit, and kept for probes: it has one small
  // request and little time.
  enum class Kind : uint8_t { kCounted, kReserved };

  // `tls`: null for plain HTTP.
  Connection(StreamSocket socket,
             std::unique_ptr<TlsSession> tls,
             ConnectionOwner& owner,
             const ConnectionLimits& limits,
             Kind kind);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  [[nodiscard]] Kind kind() const { return kind_; }

  void start();
  // Continues with a new owner, on its thread.
  void resume();
  // Checks deadlines and sends pings; called a few times a second.
  void check_deadlines(Clock::time_point now);
  // Ends the connection at once; the handler of an open request learns of the disconnect.
  void close();

  // Implements ResponseWriter.
  void send(HttpResponse response) override;
  void start_stream(const HttpHeaders& headers) override;
  void write(std::string_view bytes) override;
  bool flush() override;
  void finish_stream() override;
  void set_callbacks(std::function<void()> on_disconnect, std::function<void()> on_quiet) override;

  void give_up(HttpResponse response) override;

  void name_request(const std::string& request_id) override { request_id_ = request_id; }

  IoWorker& worker() override { return owner_->worker(); }

 private:
  enum class State : uint8_t { kReading, kHandling, kLingering, kClosed };
  struct Parser;

  void wait_readable();
  void on_readable();
  void take_input();
  [[nodiscard]] bool is_large() const;
  bool move_if_large();
  bool move_socket(boost::asio::io_context& from, boost::asio::io_context& to);
  bool skip_empty_lines();
  bool decrypt(std::string_view received);
  void append_outgoing();
  bool inflate_body(std::string& body);
  void process_input();
  bool parse_some();
  bool check_header();
  void read_header();
  void say_continue();
  void refuse_body();
  bool check_body();
  void fail_parsing(const boost::system::error_code& error);
  void dispatch();
  [[nodiscard]] std::string received_origin(std::string_view unparsed) const;
  [[nodiscard]] std::string received_id() const;
  [[nodiscard]] bool is_from_anthropic() const;
  void fail_request(int status, const std::string& message);
  void append_head(int status, const HttpHeaders& headers, std::string_view framing);
  void complete_response();
  void start_write();
  void on_written(size_t num_bytes);
  void after_response();
  void end_idle();
  void linger();

  StreamSocket socket_;
  std::unique_ptr<TlsSession> tls_;
  ConnectionOwner* owner_;
  const ConnectionLimits& limits_;
  const Kind kind_;
  State state_ = State::kReading;

  std::string input_;               // received, not yet parsed
  size_t num_empty_bytes_ = 0;      // dropped in front of the next request
  std::unique_ptr<Parser> parser_;  // reads the current request
  std::unique_ptr<Parser> rest_;    // reads what is left of it, once its header is answered
  bool reading_ = false;            // an input wait is under way

  std::string pending_;   // framed output that waits for the write under way
  std::string chunk_;     // stream bytes that wait for flush()
  std::string outgoing_;  // being written
  size_t num_sent_ = 0;   // bytes of outgoing_ already sent
  bool writing_ = false;
  std::string tls_reply_;  // handshake and alerts, as they are sent

  // State of the request being answered.
  bool keep_alive_ = true;
  bool is_head_ = false;
  bool use_chunks_ = true;  // HTTP/1.0 streams end with the connection
  bool has_begun_ = false;  // the response
  bool response_complete_ = false;
  std::string request_id_;
  bool is_anthropic_ = false;
  std::string cors_lines_;
  std::function<void()> on_disconnect_;
  std::function<void()> on_quiet_;

  Clock::time_point request_start_;  // first byte of the request being read
  Clock::time_point last_activity_;  // last byte in or out
  Clock::time_point last_write_;     // progress of the write under way, or last byte out
};

}  // namespace sluice
