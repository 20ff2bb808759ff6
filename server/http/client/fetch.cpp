// SPDX-License-Identifier: Apache-2.0
#include "server/http/client/fetch.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>

#include "server/http/client/proxy.h"
#include "server/http/client/stream.h"

namespace sluice::client {
namespace {

using boost::system::error_code;

constexpr size_t kBufferBytes = 256 << 10;

struct Target {
  ServerAddress address;
  std::string path;  // with the query
};

std::optional<Target> split_url(const std::string& url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string::npos || url.find_first_of(" \r\n\t") != std::string::npos) {
    return std::nullopt;
  }
  const size_t end = std::min(url.find_first_of("/?#", scheme + 3), url.size());
  auto address = parse_base_url(url.substr(0, end));
  if (!address) return std::nullopt;
  Target target{.address = std::move(*address), .path = url.substr(end)};
  target.path.resize(std::min(target.path.find('#'), target.path.size()));
  if (!target.path.starts_with('/')) target.path.insert(0, "/");
  return target;
}

class Exchange final : StreamEvents {
 public:
  Exchange(boost::asio::io_context& loop,
           StreamFactory& factory,
           std::string request,
           std::chrono::seconds silence,
           ResponseParser& parser)
      : timer_(loop),
        request_(std::move(request)),
        silence_(silence),
        parser_(parser),
        buffer_(kBufferBytes) {
    stream_ = factory.create(*this);
  }

  void start() {
    watch();
    stream_->connect();
  }

  void stop() { end("it was stopped"); }

  // After the loop has ended: what went wrong, if anything.
  [[nodiscard]] const std::optional<std::string>& failure() const { return failure_; }

 private:
  void on_connected() override {
    watch();
    stream_->write(request_);
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
    const bool whole = parser_.end_of_file() == ResponseParser::Status::kDone;
    end(whole ? std::nullopt : std::optional("the connection was cut: " + error.message()));
  }

  // False: the answer is over.
  bool parse() {
    size_t consumed = 0;
    const auto status = parser_.feed({buffer_.data(), num_unparsed_}, consumed);
    std::copy(buffer_.begin() + static_cast<ptrdiff_t>(consumed),
              buffer_.begin() + static_cast<ptrdiff_t>(num_unparsed_),
              buffer_.begin());
    num_unparsed_ -= consumed;
    if (status == ResponseParser::Status::kMore) return true;
    const bool is_bad = status == ResponseParser::Status::kBad;
    end(is_bad ? std::optional("no HTTP answer: " + parser_.error()) : std::nullopt);
    return false;
  }

  void read_more() {
    watch();
    stream_->read(std::span(buffer_).subspan(num_unparsed_));
  }

  void watch() {
    timer_.expires_after(silence_);
    timer_.async_wait([this](error_code error) {
      if (!error) end("nothing came for " + std::to_string(silence_.count()) + " s");
    });
  }

  void end(std::optional<std::string> failure) {
    failure_ = std::move(failure);
    timer_.cancel();
    stream_->close();
  }

  boost::asio::steady_timer timer_;
  std::string request_;
  const std::chrono::seconds silence_;
  ResponseParser& parser_;
  std::vector<char> buffer_;
  size_t num_unparsed_ = 0;  // bytes at the front of buffer_
  std::shared_ptr<Stream> stream_;
  std::optional<std::string> failure_;
};

// Without TLS, a proxy is asked for the whole URL and given its own authorization.
std::string request_text(const FetchRequest& request,
                         const Target& target,
                         const std::optional<Proxy>& proxy) {
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

Expected<ResponseHead> fetch(const FetchRequest& request, ResponseSink& sink) {
  std::optional<Target> target = split_url(request.url);
  if (!target) {
    return make_error(ErrorCode::kInvalidArgument,
                      request.url + ": must look like https://host/path");
  }
  target->address.uds = request.uds;
  const auto proxy = proxy_for(target->address, [&request](const char* name) {
    const char* value = request.may_use_proxy && request.uds.empty() ? std::getenv(name) : nullptr;
    return std::string(value == nullptr ? "" : value);
  });
  if (!proxy) return tl::unexpected(proxy.error());
  boost::asio::io_context loop;
  auto factory =
      create_stream_factory(loop, target->address, request.verification, *proxy, request.ca_file);
  const std::string way =
      *proxy ? " (by the proxy " + (*proxy)->host + ":" + (*proxy)->port + ")" : "";
  if (!factory) {
    return make_error(ErrorCode::kUnavailable, request.url + ": " + factory.error().message + way);
  }
  ResponseParser parser(sink, request.method == "HEAD");
  std::optional<std::string> failure;
  {
    Exchange exchange(
        loop, **factory, request_text(request, *target, *proxy), request.silence, parser);
    exchange.start();
    const std::stop_callback stopper(
        request.stop, [&] { boost::asio::post(loop, [&exchange] { exchange.stop(); }); });
    loop.run();
    failure = exchange.failure();
  }
  if (parser.refusal()) return tl::unexpected(*parser.refusal());
  if (failure) return make_error(ErrorCode::kUnavailable, request.url + ": " + *failure + way);
  return parser.head();
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

}  // namespace sluice::client
