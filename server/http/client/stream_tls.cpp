// SPDX-License-Identifier: Apache-2.0
// TLS streams, and the only unit that compiles Asio's non-template TLS code.
#include <algorithm>
#include <array>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>

#include "server/http/client/stream_impl.h"

namespace sluice::client {

namespace ssl = boost::asio::ssl;
using boost::asio::ip::tcp;
using boost::system::error_code;

namespace {

struct TlsTarget {
  explicit TlsTarget(ssl::context tls) : context(std::move(tls)) {}

  ssl::context context;
  Endpoints endpoints;
  std::string host;
  Verification verification = Verification::kCertificate;
  std::string tunnel_request;  // for a proxy; empty: none
};

// Limit of a proxy's answer before the tunnel is open.
constexpr size_t kMaxTunnelAnswer = 16 << 10;

class TlsStream final : public Stream {
 public:
  TlsStream(boost::asio::io_context& loop, TlsTarget& target, StreamEvents& events)
      : Stream(events), stream_(loop, target.context), target_(target) {}

  void connect() override {
    boost::asio::async_connect(stream_.lowest_layer(),
                               target_.endpoints,
                               [self = shared(), this](error_code error, const Endpoint&) {
                                 if (events_ == nullptr) return;
                                 if (error)
                                   return events_->on_connect_failed(error.message(),
                                                                     /*in_handshake=*/false);
                                 error_code ignored;
                                 stream_.lowest_layer().set_option(tcp::no_delay(true), ignored);
                                 if (target_.tunnel_request.empty()) return handshake();
                                 open_tunnel();
                               });
  }

  void write(std::string_view bytes) override {
    boost::asio::async_write(stream_,
                             boost::asio::const_buffer(bytes.data(), bytes.size()),
                             [self = shared(), this](error_code error, size_t) {
                               if (events_ != nullptr) events_->on_written(error);
                             });
  }

  void read(std::span<char> buffer) override {
    stream_.async_read_some(boost::asio::mutable_buffer(buffer.data(), buffer.size()),
                            [self = shared(), this](error_code error, size_t num_bytes) {
                              if (events_ == nullptr) return;
                              // Servers that close without a close_notify are common.
                              if (error == ssl::error::stream_truncated) {
                                error = boost::asio::error::eof;
                              }
                              events_->on_read(error, num_bytes);
                            });
  }

 private:
  std::shared_ptr<TlsStream> shared() {
    return std::static_pointer_cast<TlsStream>(shared_from_this());
  }

  void open_tunnel() {
    boost::asio::async_write(stream_.next_layer(),
                             boost::asio::buffer(target_.tunnel_request),
                             [self = shared(), this](error_code error, size_t) {
                               if (events_ == nullptr) return;
                               if (error) return tunnel_failed(error.message());
                               read_tunnel_answer();
                             });
  }

  // Reads the proxy's answer alone, because the server sends nothing before the handshake.
  void read_tunnel_answer() {
    stream_.next_layer().async_read_some(boost::asio::buffer(tunnel_buffer_),
                                         [self = shared(), this](error_code error, size_t size) {
                                           if (events_ == nullptr) return;
                                           if (error) return tunnel_failed(error.message());
                                           tunnel_answer_.append(tunnel_buffer_.data(), size);
                                           if (tunnel_answer_.find("\r\n\r\n") != std::string::npos)
                                             return check_tunnel_answer();
                                           if (tunnel_answer_.size() > kMaxTunnelAnswer)
                                             return tunnel_failed("too long an answer");
                                           read_tunnel_answer();
                                         });
  }

  // Checks for "HTTP/1.1 200 Connection established", or any other 2xx.
  void check_tunnel_answer() {
    constexpr size_t kStatus = 9;
    if (tunnel_answer_.starts_with("HTTP/1.") && tunnel_answer_[kStatus] == '2') return handshake();
    std::string line = tunnel_answer_.substr(0, std::min<size_t>(tunnel_answer_.find("\r\n"), 160));
    for (char& c : line) c = c >= ' ' && c <= '~' ? c : ' ';
    tunnel_failed(line);
  }

  void tunnel_failed(const std::string& reason) {
    events_->on_connect_failed("the proxy opened no tunnel: " + reason, /*in_handshake=*/false);
  }

  void handshake() {
    SSL_set_tlsext_host_name(stream_.native_handle(), target_.host.c_str());
    error_code error;
    if (target_.verification == Verification::kCertificate) {
      stream_.set_verify_callback(ssl::host_name_verification(target_.host), error);
    }
    stream_.async_handshake(ssl::stream_base::client, [self = shared(), this](error_code failed) {
      if (events_ == nullptr) return;
      if (failed) return events_->on_connect_failed(reason(failed), /*in_handshake=*/true);
      events_->on_connected();
    });
  }

  // Returns why TLS failed: "certificate verify failed" alone does not say what is wrong.
  std::string reason(error_code failed) {
    const auto verdict = SSL_get_verify_result(stream_.native_handle());
    if (verdict == X509_V_OK) return failed.message();
    return failed.message() + ": " + X509_verify_cert_error_string(verdict);
  }

  void close_socket() override {
    error_code ignored;
    stream_.lowest_layer().close(ignored);
  }

  ssl::stream<Socket> stream_;
  TlsTarget& target_;
  std::array<char, 1024> tunnel_buffer_{};
  std::string tunnel_answer_;
};

class TlsFactory final : public StreamFactory {
 public:
  TlsFactory(boost::asio::io_context& loop, std::unique_ptr<TlsTarget> target)
      : loop_(loop), target_(std::move(target)) {}

  std::shared_ptr<Stream> create(StreamEvents& events) override {
    return std::make_shared<TlsStream>(loop_, *target_, events);
  }

 private:
  boost::asio::io_context& loop_;
  std::unique_ptr<TlsTarget> target_;
};

}  // namespace

Expected<std::unique_ptr<StreamFactory>> create_tls_factory(boost::asio::io_context& loop,
                                                            Endpoints endpoints,
                                                            const std::string& host,
                                                            Verification verification,
                                                            std::string tunnel_request,
                                                            const std::string& ca_file) {
  auto target = std::make_unique<TlsTarget>(ssl::context(ssl::context::tls_client));
  error_code error;
  if (verification == Verification::kCertificate) {
    target->context.set_verify_mode(ssl::verify_peer, error);
    if (!error && ca_file.empty()) target->context.set_default_verify_paths(error);
    if (!error && !ca_file.empty()) target->context.load_verify_file(ca_file, error);
  } else {
    target->context.set_verify_mode(ssl::verify_none, error);
  }
  if (error) {
    return make_error(ErrorCode::kUnavailable,
                      "TLS: " + (ca_file.empty() ? "" : ca_file + ": ") + error.message());
  }
  target->endpoints = std::move(endpoints);
  target->host = host;
  target->verification = verification;
  target->tunnel_request = std::move(tunnel_request);
  return std::make_unique<TlsFactory>(loop, std::move(target));
}

}  // namespace sluice::client
