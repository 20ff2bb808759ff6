// SPDX-License-Identifier: Apache-2.0
#include "server/http/client/stream.h"

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>

#include "server/http/client/stream_impl.h"

namespace sluice::client {

using boost::asio::ip::tcp;
using boost::system::error_code;

namespace {

class PlainStream final : public Stream {
 public:
  PlainStream(boost::asio::io_context& loop, const Endpoints& endpoints, StreamEvents& events)
      : Stream(events), socket_(loop), endpoints_(endpoints) {}

  void connect() override {
    boost::asio::async_connect(
        socket_, endpoints_, [self = shared(), this](error_code error, const Endpoint&) {
          if (events_ == nullptr) return;
          if (error) return events_->on_connect_failed(error.message(), /*in_handshake=*/false);
          error_code ignored;
          socket_.set_option(tcp::no_delay(true), ignored);
          events_->on_connected();
        });
  }

  void write(std::string_view bytes) override {
    boost::asio::async_write(socket_,
                             boost::asio::const_buffer(bytes.data(), bytes.size()),
                             [self = shared(), this](error_code error, size_t) {
                               if (events_ != nullptr) events_->on_written(error);
                             });
  }

  void read(std::span<char> buffer) override {
    socket_.async_read_some(boost::asio::mutable_buffer(buffer.data(), buffer.size()),
                            [self = shared(), this](error_code error, size_t num_bytes) {
                              if (events_ != nullptr) events_->on_read(error, num_bytes);
                            });
  }

 private:
  std::shared_ptr<PlainStream> shared() {
    return std::static_pointer_cast<PlainStream>(shared_from_this());
  }

  void close_socket() override {
    error_code ignored;
    socket_.close(ignored);
  }

  Socket socket_;
  const Endpoints& endpoints_;
};

class PlainFactory final : public StreamFactory {
 public:
  PlainFactory(boost::asio::io_context& loop, Endpoints endpoints)
      : loop_(loop), endpoints_(std::move(endpoints)) {}

  std::shared_ptr<Stream> create(StreamEvents& events) override {
    return std::make_shared<PlainStream>(loop_, endpoints_, events);
  }

 private:
  boost::asio::io_context& loop_;
  Endpoints endpoints_;
};

std::string tunnel_request(const ServerAddress& server, const Proxy& proxy) {
  const bool is_v6 = server.host.find(':') != std::string::npos;
  const std::string place = (is_v6 ? "[" + server.host + "]" : server.host) + ":" + server.port;
  std::string text = "CONNECT " + place + " HTTP/1.1\r\nHost: " + place + "\r\n";
  if (!proxy.authorization.empty()) {
    text += "Proxy-Authorization: " + proxy.authorization + "\r\n";
  }
  return text + "\r\n";
}

}  // namespace

std::unique_ptr<StreamFactory> create_plain_factory(boost::asio::io_context& loop,
                                                    Endpoints endpoints) {
  return std::make_unique<PlainFactory>(loop, std::move(endpoints));
}

std::string ServerAddress::authority() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  const std::string name = is_v6 ? "[" + host + "]" : host;
  const bool is_default = port == (tls ? "443" : "80");
  return is_default ? name : name + ":" + port;
}

Expected<ServerAddress> parse_base_url(const std::string& url) {
  const auto fail = [&url] {
    return make_error(
        ErrorCode::kInvalidArgument,
        "--base-url must look like http://127.0.0.1:8000 or https://host, got \"" + url + "\"");
  };
  ServerAddress address;
  std::string rest;
  if (url.starts_with("http://")) {
    rest = url.substr(7);
  } else if (url.starts_with("https://")) {
    rest = url.substr(8);
    address.tls = true;
  } else {
    return fail();
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  address.path = rest.substr(slash);
  while (address.path.ends_with('/')) address.path.pop_back();
  const std::string authority = rest.substr(0, slash);
  if (authority.find('@') != std::string::npos) return fail();
  size_t colon = authority.rfind(':');
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string::npos) return fail();
    address.host = authority.substr(1, end - 1);
    if (colon != std::string::npos && colon < end) colon = std::string::npos;
  } else {
    address.host = authority.substr(0, colon);
  }
  address.port =
      colon == std::string::npos ? (address.tls ? "443" : "80") : authority.substr(colon + 1);
  if (address.host.empty() || address.port.empty()) return fail();
  return address;
}

Expected<std::unique_ptr<StreamFactory>> create_stream_factory(boost::asio::io_context& loop,
                                                               const ServerAddress& address,
                                                               Verification verification,
                                                               const std::optional<Proxy>& proxy,
                                                               const std::string& ca_file) {
  if (!address.uds.empty()) {
    if (address.uds.size() >= sizeof(sockaddr_un::sun_path)) {
      return make_error(ErrorCode::kInvalidArgument, address.uds + ": too long for a Unix socket");
    }
    return create_plain_factory(
        loop, {Endpoint(boost::asio::local::stream_protocol::endpoint(address.uds))});
  }
  error_code error;
  tcp::resolver resolver(loop);
  const std::string& host = proxy ? proxy->host : address.host;
  const auto found = resolver.resolve(host, proxy ? proxy->port : address.port, error);
  if (error || found.empty()) {
    return make_error(ErrorCode::kUnavailable,
                      std::string(proxy ? "the proxy's name " : "the server's name ") + host +
                          " has no address: " + error.message());
  }
  Endpoints endpoints;
  for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  if (address.tls) {
    return create_tls_factory(loop,
                              std::move(endpoints),
                              address.host,
                              verification,
                              proxy ? tunnel_request(address, *proxy) : std::string(),
                              ca_file);
  }
  return create_plain_factory(loop, std::move(endpoints));
}

}  // namespace sluice::client
