// SPDX-License-Identifier: Apache-2.0
#include "server/hub/http_fetch.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>

#include "server/hub/proxy.h"
#include "server/load/transport.h"

namespace sluice::hub {
namespace {

namespace http = boost::beast::http;
using boost::beast::string_view;
using boost::system::error_code;

constexpr auto kSilence = std::chrono::seconds(30);
constexpr size_t kBufferBytes = 256 << 10;
constexpr uint32_t kMaxHeadBytes = 64 << 10;

struct Target {
  load::ServerAddress address;
  std::string path;  // with the query
};

std::optional<Target> split_url(const std::string& url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string::npos || url.find_first_of(" \r\n\t") != std::string::npos) {
    return std::nullopt;
  }
  const size_t end = std::min(url.find_first_of("/?#", scheme + 3), url.size());
  auto address = load::parse_base_url(url.substr(0, end));
  if (!address) return std::nullopt;
  Target target{.address = std::move(*address), .path = url.substr(end)};
  target.path.resize(std::min(target.path.find('#'), target.path.size()));
  if (!target.path.starts_with('/')) target.path.insert(0, "/");
  return target;
}

// Hands the parts of an answer to the sink; what the sink refuses stops the parser.
class AnswerParser final : public http::basic_parser<false> {
 public:
  AnswerParser(HttpSink& sink, bool is_head) : sink_(sink) {
    eager(true);
    skip(is_head);
    body_limit(boost::none);
    header_limit(kMaxHeadBytes);
  }

  HttpHead head;
  std::optional<Error> refusal;

 private:
  void on_request_impl(http::verb, string_view, string_view, int, error_code&) override {}

  void on_response_impl(int status, string_view, int, error_code&) override {
    head.status = status;
  }

  void on_field_impl(http::field, string_view name, string_view value, error_code&) override {
    std::string lower(name.data(), name.size());
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    head.fields.emplace(std::move(lower), std::string(value.data(), value.size()));
  }

  void on_header_impl(error_code& error) override { take(sink_.on_head(head), error); }

  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}

  std::size_t on_body_impl(string_view body, error_code& error) override {
    take(sink_.on_body({body.data(), body.size()}), error);
    return body.size();
  }

  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}

  std::size_t on_chunk_body_impl(std::uint64_t, string_view body, error_code& error) override {
    return on_body_impl(body, error);
  }

  void on_finish_impl(error_code&) override {}

  void take(Expected<void> result, error_code& error) {
    if (result) return;
    refusal = std::move(result).error();
    error = http::error::end_of_stream;
  }

  HttpSink& sink_;
};

class Exchange final : load::TransportEvents {
 public:
  Exchange(boost::asio::io_context& loop,
           load::TransportFactory& factory,
           std::string request,
           AnswerParser& parser)
      : timer_(loop), request_(std::move(request)), parser_(parser), buffer_(kBufferBytes) {
    transport_ = factory.create(*this);
  }

  void start() {
    watch();
    transport_->connect();
  }

  void stop() { end("it was stopped"); }

  // After the loop has ended: what went wrong, if anything.
  [[nodiscard]] const std::optional<std::string>& failure() const { return failure_; }

 private:
  void on_connected() override {
    watch();
    transport_->write(request_);
  }

  void on_connect_failed(const std::string& reason, bool in_handshake) override {
    end((in_handshake ? "TLS: " : "cannot connect: ") + reason);
  }

  void on_written(error_code error) override {
    if (error) return end("the connection was cut: " + error.message());
    read_more();
  }

  void on_read(error_code error, size_t num_bytes) override {
    num_unparsed_ += num_bytes;
    if (!parse()) return;
    if (!error) return read_more();
    error_code at_end;
    if (parser_.is_header_done()) parser_.put_eof(at_end);
    const bool whole = !at_end && parser_.is_header_done() && parser_.is_done();
    end(whole ? std::nullopt : std::optional("the connection was cut: " + error.message()));
  }

  // False: the answer is over.
  bool parse() {
    size_t taken = 0;
    error_code error;
    while (!parser_.is_done() && taken < num_unparsed_ && !error) {
      const size_t count = parser_.put(
          boost::asio::const_buffer(buffer_.data() + taken, num_unparsed_ - taken), error);
      taken += count;
      if (count == 0) break;
    }
    if (error == http::error::need_more) error = {};
    std::copy(buffer_.begin() + static_cast<ptrdiff_t>(taken),
              buffer_.begin() + static_cast<ptrdiff_t>(num_unparsed_),
              buffer_.begin());
    num_unparsed_ -= taken;
    if (!error && num_unparsed_ == buffer_.size()) error = http::error::header_limit;
    if (!error && !parser_.is_done()) return true;
    end(error ? std::optional("no HTTP answer: " + error.message()) : std::nullopt);
    return false;
  }

  void read_more() {
    watch();
    transport_->read(std::span(buffer_).subspan(num_unparsed_));
  }

  void watch() {
    timer_.expires_after(kSilence);
    timer_.async_wait([this](error_code error) {
      if (!error) end("nothing came for " + std::to_string(kSilence.count()) + " s");
    });
  }

  void end(std::optional<std::string> failure) {
    failure_ = std::move(failure);
    timer_.cancel();
    transport_->close();
  }

  boost::asio::steady_timer timer_;
  std::string request_;
  AnswerParser& parser_;
  std::vector<char> buffer_;
  size_t num_unparsed_ = 0;  // bytes at the front of buffer_
  std::shared_ptr<load::Transport> transport_;
  std::optional<std::string> failure_;
};

// Without TLS, a proxy is asked for the whole URL and given its own authorization.
std::string request_text(const HttpRequest& request,
                         const Target& target,
                         const std::optional<load::Proxy>& proxy) {
  const bool asks_proxy = proxy && !target.address.tls;
  std::string text = request.method + " " +
                     (asks_proxy ? "http://" + target.address.authority() : "") + target.path +
                     " HTTP/1.1\r\nHost: " + target.address.authority() +
                     "\r\nUser-Agent: sluice\r\nAccept-Encoding: identity\r\nConnection: close\r\n";
  if (asks_proxy && !proxy->authorization.empty()) {
    text += "Proxy-Authorization: " + proxy->authorization + "\r\n";
  }
  for (const auto& [name, value] : request.headers) text += name + ": " + value + "\r\n";
  if (!request.body.empty()) {
    text += "Content-Length: " + std::to_string(request.body.size()) + "\r\n";
  }
  return text + "\r\n" + request.body;
}

}  // namespace

std::string_view HttpHead::field(std::string_view name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? std::string_view() : found->second;
}

Expected<HttpHead> http_fetch(const HttpRequest& request, HttpSink& sink) {
  const std::optional<Target> target = split_url(request.url);
  if (!target) {
    return make_error(ErrorCode::kInvalidArgument,
                      request.url + ": must look like https://host/path");
  }
  const auto proxy = proxy_for(target->address, [&request](const char* name) {
    const char* value = request.may_use_proxy ? std::getenv(name) : nullptr;
    return std::string(value == nullptr ? "" : value);
  });
  if (!proxy) return tl::unexpected(proxy.error());
  boost::asio::io_context loop;
  auto factory = load::create_transport_factory(
      loop, target->address, load::Verification::kCertificate, *proxy, request.ca_file);
  const std::string way =
      *proxy ? " (by the proxy " + (*proxy)->host + ":" + (*proxy)->port + ")" : "";
  if (!factory) {
    return make_error(ErrorCode::kUnavailable, request.url + ": " + factory.error().message + way);
  }
  AnswerParser parser(sink, request.method == "HEAD");
  std::optional<std::string> failure;
  {
    Exchange exchange(loop, **factory, request_text(request, *target, *proxy), parser);
    exchange.start();
    const std::stop_callback stopper(
        request.stop, [&] { boost::asio::post(loop, [&exchange] { exchange.stop(); }); });
    loop.run();
    failure = exchange.failure();
  }
  if (parser.refusal) return tl::unexpected(std::move(*parser.refusal));
  if (failure) return make_error(ErrorCode::kUnavailable, request.url + ": " + *failure + way);
  return std::move(parser.head);
}

void pause_for(std::chrono::milliseconds time) {
  boost::asio::io_context loop;
  boost::asio::steady_timer timer(loop, time);
  timer.wait();
}

std::string origin_of(const std::string& url) {
  const std::optional<Target> target = split_url(url);
  if (!target) return {};
  std::string origin = (target->address.tls ? "https://" : "http://") + target->address.authority();
  for (char& c : origin) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return origin;
}

std::string resolve_location(const std::string& url, std::string_view location) {
  const std::string text(location);
  if (!text.starts_with('/')) return origin_of(text).empty() ? "" : text;
  const std::string scheme = url.substr(0, url.find("://"));
  if (text.starts_with("//")) return scheme + ":" + text;
  return origin_of(url) + text;
}

}  // namespace sluice::hub
