// SPDX-License-Identifier: Apache-2.0
// A byte stream to a server, plain or TLS, as one type: no other file of the client knows which.
// One operation of a kind at a time; all on the thread of the event loop.
#pragma once

#include <boost/system/error_code.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace boost::asio {
class io_context;
}

namespace sluice::client {

class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  virtual void on_connected() = 0;
  // `in_handshake`: the connection was made, the TLS handshake failed.
  virtual void on_connect_failed(const std::string& reason, bool in_handshake) = 0;
  virtual void on_written(boost::system::error_code error) = 0;
  virtual void on_read(boost::system::error_code error, size_t num_bytes) = 0;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  virtual ~Stream() = default;

  // The pending handlers own the stream too, so it may be dropped at any time after close().
  virtual void connect() = 0;
  virtual void write(std::string_view bytes) = 0;  // writes all bytes, which the caller keeps
  virtual void read(std::span<char> buffer) = 0;   // reads some bytes; the caller keeps the buffer

  // Closes the stream; no event follows.
  void close() {
    events_ = nullptr;
    close_socket();
  }

 protected:
  explicit Stream(StreamEvents& events) : events_(&events) {}

  virtual void close_socket() = 0;

  StreamEvents* events_;  // null: closed
};

struct ServerAddress {
  bool tls = false;
  std::string host;
  std::string port;
  std::string path;      // precedes the endpoint's; no slash at its end
  std::string uds = {};  // the path of a Unix socket to connect to, without TLS; empty: none

  // Returns the value of a Host header.
  [[nodiscard]] std::string authority() const;
};

// Parses http://host:port/path or https://...
Expected<ServerAddress> parse_base_url(const std::string& url);

// An HTTP proxy: TLS goes through a tunnel that CONNECT opens.
struct Proxy {
  std::string host;
  std::string port;
  std::string authorization;  // for Proxy-Authorization; empty: none
};

// Makes streams to one server, whose name was resolved once.
class StreamFactory {
 public:
  virtual ~StreamFactory() = default;
  virtual std::shared_ptr<Stream> create(StreamEvents& events) = 0;
};

enum class Verification : uint8_t { kCertificate, kNone };

// kUnavailable: the host (or the proxy) has no address. The loop outlives the factory. Through a
// proxy, a plain stream speaks to the proxy itself: requests name the whole URL. `ca_file`: PEM
// certificates to verify with instead of the system's; empty: the system's.
Expected<std::unique_ptr<StreamFactory>> create_stream_factory(
    boost::asio::io_context& loop,
    const ServerAddress& address,
    Verification verification,
    const std::optional<Proxy>& proxy = std::nullopt,
    const std::string& ca_file = {});

}  // namespace sluice::client
