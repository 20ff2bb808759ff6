// SPDX-License-Identifier: Apache-2.0
#include "server/http/connection.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdio>
#include <new>
#include <utility>

#include "engine/core/config.h"
#include "server/http/api_errors.h"
#include "server/http/inflate.h"
#include "server/http/random_id.h"
#include "server/http/request_id.h"
#include "server/http/socket_name.h"

namespace sluice {

namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::string_view kRequestPrefix = "req_";

// Limit of unparsed bytes in a chunk header or the rest of a header, and of pipelined input that is
// kept while a request is answered.
constexpr size_t kMaxUnparsedBytes = 64 << 10;
// Bounds of a connection that is kept for probes.
constexpr uint64_t kReservedBodyBytes = 4096;
constexpr std::chrono::seconds kReservedTime{5};
constexpr std::chrono::seconds kLingerTime{2};
constexpr uint64_t kLargeDeflatedBody = 16 << 10;  // like kLargeBody: it grows a hundredfold

// Returns the path of "/path?query", or of the absolute form that proxies are sent (RFC 9112, 3.2).
std::string path_of(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!boost::beast::iequals(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    if (!target.starts_with('/')) return "/";
    break;
  }
  std::string_view path = target.substr(0, target.find('?'));
  // A slash at the end is dropped, unless it is the whole path.
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return std::string(path);
}

// Returns the value of the Origin line among the complete header lines; empty: there is none.
std::string_view origin_line(std::string_view lines) {
  constexpr std::string_view kName = "origin:";
  for (size_t end = lines.find("\r\n"); end != std::string_view::npos; end = lines.find("\r\n")) {
    std::string_view line = lines.substr(0, end);
    if (line.empty()) break;  // a body follows
    lines.remove_prefix(end + 2);
    if (!boost::beast::iequals(line.substr(0, kName.size()), kName)) continue;
    line.remove_prefix(kName.size());
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    return line.substr(0, line.find_last_not_of(" \t") + 1);
  }
  return {};
}

// Refuses line ends inside a quoted extension, which the library takes, while a proxy may see the
// chunk begin there.
void check_extension(std::uint64_t, boost::beast::string_view extension, error_code& error) {
  const bool is_one_line = std::ranges::all_of(
      extension, [](char c) { return static_cast<unsigned char>(c) >= 0x20 || c == '\t'; });
  if (!is_one_line) error = http::error::bad_chunk_extension;
}

}  // namespace

ConnectionLimits::ConnectionLimits(const Config& config, const CorsPolicy& policy)
    : cors(policy),
      max_body_bytes(static_cast<uint64_t>(config.max_body_bytes)),
      max_gzip_ratio(config.max_gzip_ratio),
      max_header_bytes(static_cast<uint32_t>(config.max_header_bytes)),
      max_stream_buffer_bytes(static_cast<size_t>(config.max_stream_buffer_bytes)),
      idle_timeout(config.idle_timeout_s),
      request_timeout(config.request_timeout_s),
      write_timeout(config.write_timeout_s),
      ping_interval(config.ping_interval_s) {}

struct Connection::Parser {
  explicit Parser(BodyBudget& bodies) : share(bodies) { beast.on_chunk_header(check_extension); }

  http::request_parser<http::string_body> beast;
  size_t header_bytes = 0;  // parsed so far
  bool header_checked = false;
  bool header_read = false;
  bool is_gzip = false;
  bool is_costly = false;
  bool awaits_continue = false;
  bool is_answered = false;  // by its header
  BodyShare share;
  // Filled from the header alone: the library puts trailers among its fields, and a trailer must
  // not name the client or the connection's fate (RFC 9110, 6.5.1).
  HttpRequest request;
  bool keep_alive = false;
};

Connection::Connection(StreamSocket socket,
                       std::unique_ptr<TlsSession> tls,
                       ConnectionOwner& owner,
                       const ConnectionLimits& limits,
                       Kind kind)
    : socket_(std::move(socket)),
      tls_(std::move(tls)),
      owner_(&owner),
      limits_(limits),
      kind_(kind),
      request_start_(Clock::now()),
      last_activity_(request_start_),
      last_write_(request_start_) {}

Connection::~Connection() = default;

void Connection::start() {
  error_code ignored;  // both options only tune; the connection works without
  socket_.non_blocking(true, ignored);
  socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
  wait_readable();
}

void Connection::wait_readable() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kHandling && input_.size() >= kMaxUnparsedBytes) return;  // backpressure
  reading_ = true;
  socket_.async_wait(StreamSocket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->reading_ = false;
    if (error || self->state_ == State::kClosed) return self->close();
    try {
      self->on_readable();
    } catch (const std::bad_alloc&) {  // for what has arrived
      self->close();
    }
  });
}

void Connection::on_readable() {
  const auto scratch = owner_->scratch();
  error_code error;
  const size_t num_read =
      socket_.read_some(boost::asio::buffer(scratch.data(), scratch.size()), error);
  if (error == boost::asio::error::would_block || error == boost::asio::error::interrupted) {
    return wait_readable();
  }
  if (error) return close();  // end of file too: the client is gone
  if (state_ != State::kLingering) {
    last_activity_ = Clock::now();
    const bool is_first = input_.empty() && parser_ == nullptr;
    if (tls_ == nullptr) {
      input_.append(scratch.data(), num_read);
    } else if (!decrypt({scratch.data(), num_read})) {
      return close();
    }
    if (is_first && !input_.empty()) request_start_ = last_activity_;
    return take_input();
  }
  wait_readable();
}

// Continues with what has been received, here or on another thread.
void Connection::take_input() {
  process_input();
  if (move_if_large()) return;
  process_input();  // a large body that stays here
  wait_readable();
}

// Whether the request being read has, or will have, a large body, or costs as much.
bool Connection::is_large() const {
  if (state_ != State::kReading || parser_ == nullptr || !parser_->header_read) return false;
  if (parser_->is_costly) return true;
  const auto length = parser_->beast.content_length_remaining();
  const uint64_t bytes = parser_->beast.get().body().size() + (length ? *length : 0);
  return bytes > (parser_->is_gzip ? kLargeDeflatedBody : kLargeBody);
}

// Returns true if the connection now belongs to another thread and must not be touched.
bool Connection::move_if_large() {
  if (!is_large() || writing_ || reading_) return false;
  ConnectionOwner* const here = owner_;
  ConnectionOwner* const other = here->large_bodies_owner();
  if (other == nullptr) return false;
  const auto self = shared_from_this();
  if (move_socket(here->context(), other->context())) {
    owner_ = other;
    try {
      other->take_over(self);
      here->forget(*self);  // its address only: `other` may be at work already
      return true;
    } catch (const std::bad_alloc&) {
      owner_ = here;
      move_socket(other->context(), here->context());
    }
  }
  if (socket_.is_open()) return false;
  close();
  return true;
}

// Hands the socket to another loop. Returns false where that was not to be: it is with `from` still
// or, if that has no room for it either, closed.
bool Connection::move_socket(boost::asio::io_context& from, boost::asio::io_context& to) {
  error_code error;
  const auto protocol = socket_.local_endpoint(error).protocol();
  if (error) return false;
  const int descriptor = socket_.release(error);
  if (error) return false;
  for (boost::asio::io_context* const context : {&to, &from}) {
    try {
      socket_ = StreamSocket(*context);
      socket_.assign(protocol, descriptor, error);
      if (error) continue;
      socket_.non_blocking(true, error);  // see start()
      return context == &to;
    } catch (const std::bad_alloc&) {
    }
  }
  ::close(descriptor);
  return false;
}

void Connection::resume() { take_input(); }

// Returns false if nothing more can arrive. A last alert for the peer is sent if it fits at once.
bool Connection::decrypt(std::string_view received) {
  const bool goes_on = tls_->receive(received, input_, tls_reply_);
  if (tls_reply_.size() > kMaxUnparsedBytes) return false;
  if (goes_on) {
    start_write();
    return true;
  }
  error_code ignored;  // the connection ends either way
  if (!writing_) socket_.write_some(boost::asio::buffer(tls_reply_), ignored);
  return false;
}

// Drops empty lines in front of a request line (RFC 9112, 2.2), which old clients send after a
// body. Returns false if there is nothing else yet, or too much of that.
bool Connection::skip_empty_lines() {
  size_t taken = 0;
  while (input_.compare(taken, 2, "\r\n") == 0) taken += 2;
  input_.erase(0, taken);
  num_empty_bytes_ += taken;
  if (num_empty_bytes_ > limits_.max_header_bytes) {
    fail_request(400, "Too many empty lines in front of a request.");
    return false;
  }
  return !input_.empty() && input_ != "\r";
}

// Parses the received bytes; the next request waits in input_ until this one is answered.
void Connection::process_input() {
  while (state_ == State::kReading && !input_.empty() && parse_some()) {
    if (!parser_->is_answered || !parser_->beast.is_done()) return dispatch();
    parser_.reset();  // the rest of a request that was answered by its header
    request_start_ = last_activity_;
  }
}

// Returns true once a request can be answered: all of it has arrived, or a header that is refused.
bool Connection::parse_some() {
  if (parser_ == nullptr) {
    if (!skip_empty_lines()) return false;
    num_empty_bytes_ = 0;
    parser_ = std::make_unique<Parser>(owner_->bodies());
    parser_->beast.header_limit(limits_.max_header_bytes);
    const bool is_reserved = kind_ == Kind::kReserved;
    parser_->beast.body_limit(is_reserved ? kReservedBodyBytes : limits_.max_body_bytes);
  }
  auto& beast = parser_->beast;
  size_t offset = 0;
  error_code error;
  while (!beast.is_done() && offset < input_.size()) {
    if (parser_->header_read) say_continue();
    const size_t taken =
        beast.put(boost::asio::const_buffer(input_.data() + offset, input_.size() - offset), error);
    offset += taken;
    // The parser's own limit does not count header lines that it has consumed before.
    if (!parser_->header_checked) parser_->header_bytes += taken;
    if (parser_->header_bytes > limits_.max_header_bytes) error = http::error::header_limit;
    if (error) break;
    if (beast.is_header_done() && !parser_->header_checked) {
      parser_->header_checked = true;
      if (!check_header()) return false;
      read_header();
      beast.eager(true);
      if (!beast.is_done() && !owner_->wants_body(parser_->request)) {
        input_.erase(0, offset);
        refuse_body();
        return true;
      }
      if (is_large()) break;  // see take_input()
    }
    if (!check_body()) return false;
  }
  input_.erase(0, offset);
  if (parser_->header_read && !beast.is_done()) say_continue();
  if (error == http::error::need_more) {
    if (input_.size() > std::max<size_t>(kMaxUnparsedBytes, limits_.max_header_bytes)) {
      fail_request(400, "A chunk header is too long.");
    }
    return false;
  }
  if (error) fail_parsing(error);
  return !error && beast.is_done();
}

// The header is answered. A small body is read all the same, so that another request may follow.
void Connection::refuse_body() {
  parser_->is_answered = true;
  const auto length = parser_->beast.content_length();
  const bool is_small = !length || *length <= uint64_t{BodyBudget::kFreeBytes};
  if (!is_small || parser_->awaits_continue) parser_->keep_alive = false;
}

// Refuses a body for which there is no room.
bool Connection::check_body() {
  const auto bytes = static_cast<int64_t>(parser_->beast.get().body().size());
  const bool is_for_nothing = parser_->is_answered && bytes > BodyBudget::kFreeBytes;
  if (!is_for_nothing && parser_->share.grow_to(bytes)) return true;
  fail_request(503, "Too many large request bodies are being received.");
  return false;
}

void Connection::fail_parsing(const error_code& error) {
  if (error == http::error::header_limit) {
    fail_request(431,
                 "The request header is larger than " + std::to_string(limits_.max_header_bytes) +
                     " bytes.");
  } else if (error == http::error::body_limit && kind_ == Kind::kReserved) {
    fail_request(503, "Too many connections are open.");
  } else if (error == http::error::body_limit) {
    fail_request(
        413,
        "The request body is larger than " + std::to_string(limits_.max_body_bytes) + " bytes.");
  } else if (error == http::error::bad_version) {
    fail_request(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.");
  } else {
    fail_request(400, "Malformed HTTP request: " + error.message() + ".");
  }
}

// Answers an expectation of 100-continue once.
void Connection::say_continue() {
  if (!std::exchange(parser_->awaits_continue, false)) return;
  pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
  start_write();
}

// Refuses headers that the parser accepts and RFC 9112 (3.2, 6.1, 6.3) forbids.
bool Connection::check_header() {
  const auto& message = parser_->beast.get();
  const auto num_lengths = message.count(http::field::content_length);
  const auto num_codings = message.count(http::field::transfer_encoding);
  const auto reject = [this](int status, const char* why) {
    fail_request(status, why);
    return false;
  };
  if (num_lengths > 1) return reject(400, "More than one Content-Length.");
  if (num_codings > 0 && num_lengths > 0) {
    return reject(400, "Content-Length and Transfer-Encoding in one request.");
  }
  if (num_codings > 1) return reject(400, "More than one Transfer-Encoding.");
  if (num_codings == 1) {
    if (!boost::beast::iequals(message[http::field::transfer_encoding], "chunked")) {
      return reject(501, "The only transfer coding understood is 'chunked'.");
    }
    if (message.version() < 11) return reject(400, "HTTP/1.0 has no Transfer-Encoding.");
  }
  for (const char c : message[http::field::content_length]) {
    if (c < '0' || c > '9') return reject(400, "Content-Length must be digits.");
  }
  if (message.version() >= 11 && message.count(http::field::host) != 1) {
    return reject(400, "An HTTP/1.1 request has exactly one Host header.");
  }
  const auto content_encoding = message[http::field::content_encoding];
  parser_->is_gzip = boost::beast::iequals(content_encoding, "gzip") ||
                     boost::beast::iequals(content_encoding, "x-gzip");
  if (!parser_->is_gzip && !content_encoding.empty() &&
      !boost::beast::iequals(content_encoding, "identity")) {
    return reject(415, "The only Content-Encoding understood is 'gzip'.");
  }
  if (message.count(http::field::expect) > 0) {
    if (!boost::beast::iequals(message[http::field::expect], "100-continue")) {
      return reject(417, "The only expectation understood is '100-continue'.");
    }
    parser_->awaits_continue = !parser_->beast.is_done() && message.version() >= 11;
  }
  return true;
}

void Connection::read_header() {
  const auto& message = parser_->beast.get();
  const auto header = [&message](auto name) {
    const auto value = message[name];
    return std::string(value.data(), value.size());
  };
  HttpRequest& request = parser_->request;
  request.method.assign(message.method_string().data(), message.method_string().size());
  const std::string_view target(message.target().data(), message.target().size());
  request.path = path_of(target);
  request.query = target.substr(std::min(target.find('?'), target.size() - 1) + 1);
  request.authorization = header(http::field::authorization);
  request.api_key = header("x-api-key");
  request.accept = header(http::field::accept);
  request.request_id = safe_request_id(header("x-request-id"));
  request.names_itself = !request.request_id.empty();
  if (!request.names_itself) request.request_id = random_id(kRequestPrefix);
  request.is_anthropic = !message["anthropic-version"].empty();
  request.client = peer_name(socket_.native_handle());
  request.host = header(http::field::host);
  request.origin = header(http::field::origin);
  request.fetch_site = header("sec-fetch-site");
  request.wanted_headers = header(http::field::access_control_request_headers);
  request.trace = parse_trace_context(header("traceparent"), header("tracestate"));
  request.is_reserved = kind_ == Kind::kReserved;
  parser_->keep_alive = message.keep_alive();
  parser_->is_costly = owner_->is_costly(request);
  parser_->header_read = true;
}

void Connection::dispatch() {
  auto& message = parser_->beast.get();
  const bool is_whole = parser_->beast.is_done();
  if (is_whole && parser_->is_gzip && !inflate_body(message.body())) return;
  HttpRequest request = std::move(parser_->request);
  request.body = std::move(message.body());
  keep_alive_ = parser_->keep_alive && !request.is_reserved;
  use_chunks_ = message.version() >= 11;
  is_head_ = request.method == "HEAD";
  request_id_ = request.request_id;
  is_anthropic_ = request.is_anthropic;
  cors_lines_ = limits_.cors.header_lines(request.origin);
  has_begun_ = false;
  response_complete_ = false;
  if (is_whole) {
    parser_.reset();
  } else {
    rest_ = std::move(parser_);
  }
  state_ = State::kHandling;
  last_write_ = Clock::now();
  owner_->request_started();
  owner_->handle(std::move(request), shared_from_this());
}

// Returns false after answering why the body cannot be inflated.
bool Connection::inflate_body(std::string& body) {
  auto inflated = inflate_gzip(body, limits_.max_body_bytes, limits_.max_gzip_ratio);
  if (!inflated) {
    const bool too_large = inflated.error().code == ErrorCode::kResourceExhausted;
    fail_request(too_large ? 413 : 400, inflated.error().message);
    return false;
  }
  body = std::move(*inflated);
  return true;
}

// Returns the Origin of a request that may be incomplete. Trailers are not read: after the header,
// only the header's value counts.
std::string Connection::received_origin(std::string_view unparsed) const {
  if (parser_ == nullptr) return std::string(origin_line(unparsed));
  if (parser_->header_read) return parser_->request.origin;
  const auto parsed = parser_->beast.get()[http::field::origin];
  return parsed.empty() ? std::string(origin_line(unparsed))
                        : std::string(parsed.data(), parsed.size());
}

// The id that the client has given its request, which may be incomplete, or one of ours.
std::string Connection::received_id() const {
  if (parser_ == nullptr) return random_id(kRequestPrefix);
  if (parser_->header_read) return parser_->request.request_id;
  const auto given = parser_->beast.get()["x-request-id"];
  std::string id = safe_request_id(std::string(given.data(), given.size()));
  return id.empty() ? random_id(kRequestPrefix) : id;
}

// Whether it is Anthropic's clients' request, as far as it has arrived.
bool Connection::is_from_anthropic() const {
  if (parser_ == nullptr) return false;
  if (parser_->header_read) return parser_->request.is_anthropic;
  return !parser_->beast.get()["anthropic-version"].empty();
}

// Answers input that could not be parsed; nothing after it can be trusted.
void Connection::fail_request(int status, const std::string& message) {
  if (parser_ != nullptr && parser_->is_answered) return close();
  cors_lines_ = limits_.cors.header_lines(received_origin(input_));
  input_.clear();
  is_head_ = false;
  is_anthropic_ = is_from_anthropic();
  request_id_ = received_id();
  has_begun_ = false;
  response_complete_ = false;
  state_ = State::kHandling;
  owner_->request_started();
  owner_->count_rejected(status);
  const ErrorForm form = is_anthropic_ ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
  HttpResponse response = http_error_response(status, message, form, request_id_);
  response.close = true;
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  send(std::move(response));
}

// Called when the kernel has taken the whole response.
void Connection::after_response() {
  owner_->request_done();
  constexpr size_t kKeptCapacity = 64 << 10;
  if (outgoing_.capacity() > kKeptCapacity) {
    std::string().swap(outgoing_);
    num_sent_ = 0;
  }
  if (!keep_alive_) return linger();
  parser_ = std::move(rest_);
  state_ = State::kReading;
  request_start_ = last_activity_;
  if (parser_ == nullptr && input_.empty() && owner_->is_leaving()) end_idle();
  take_input();
}

// Reads on before closing: unread input would reset the connection and could destroy the response.
void Connection::linger() {
  state_ = State::kLingering;
  input_.clear();
  parser_.reset();
  rest_.reset();
  last_activity_ = Clock::now();
  error_code ignored;  // the peer may be gone already
  socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
  wait_readable();
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  const bool was_handling = state_ == State::kHandling;
  state_ = State::kClosed;
  error_code ignored;
  socket_.close(ignored);
  auto on_disconnect = std::move(on_disconnect_);
  on_disconnect_ = nullptr;
  on_quiet_ = nullptr;
  if (on_disconnect) on_disconnect();
  if (was_handling) owner_->request_done();
  owner_->remove(*this);
}

void Connection::check_deadlines(Clock::time_point now) {
  const auto self = shared_from_this();  // close() drops the worker's reference
  if (kind_ == Kind::kReserved && now - request_start_ > kReservedTime) return close();
  if ((writing_ || !pending_.empty()) && now - last_write_ > limits_.write_timeout) return close();
  switch (state_) {
    case State::kReading: {
      const bool in_handshake = tls_ != nullptr && !tls_->is_established();
      if (in_handshake && now - request_start_ > limits_.request_timeout) return close();
      const bool in_request = parser_ != nullptr || !input_.empty();
      if (in_request && now - request_start_ > limits_.request_timeout) {
        fail_request(408,
                     "The request did not arrive completely within " +
                         std::to_string(limits_.request_timeout.count()) + " s.");
      } else if (!in_request && now - last_activity_ > owner_->idle_timeout()) {
        end_idle();
      }
      break;
    }
    case State::kHandling:
      if (on_quiet_ && !writing_ && now - last_write_ > limits_.ping_interval) {
        last_write_ = now;
        const auto on_quiet = on_quiet_;
        on_quiet();
      }
      break;
    case State::kLingering:
      if (now - last_activity_ > kLingerTime) close();
      break;
    case State::kClosed:
      break;
  }
}

}  // namespace sluice
