// SPDX-License-Identifier: Apache-2.0
// A GET of /health in plain sockets: what a container's health check runs, without curl.
#include <netdb.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <span>

#include "server/cli/command.h"
#include "server/load/transport.h"

namespace sluice {
namespace {

constexpr int kTimeoutSeconds = 5;

struct Place {
  std::string uds;  // instead of the address
  load::ServerAddress address;
};

Expected<Place> parse_url(const std::string& url) {
  static constexpr std::string_view kUnix = "unix:";
  const auto fail = [&url] {
    return make_error(ErrorCode::kInvalidArgument,
                      "--url must look like http://127.0.0.1:8000, got \"" + url + "\"");
  };
  Place place;
  if (url.starts_with(kUnix)) {
    place.uds = url.substr(kUnix.size());
    if (place.uds.empty() || place.uds.size() >= sizeof(sockaddr_un::sun_path)) return fail();
    return place;
  }
  auto address = load::parse_base_url(url);
  if (!address) return fail();
  place.address = std::move(*address);
  return place;
}

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}

  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  [[nodiscard]] int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Bytes over a connected socket, plain or TLS. Whose certificate it is does not matter: the
// question is whether the server answers.
class Channel {
 public:
  Channel(int descriptor, bool tls) : descriptor_(descriptor) {
    if (!tls) return;
    context_.reset(SSL_CTX_new(TLS_client_method()));
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), descriptor);
    broken_ = SSL_connect(ssl_.get()) != 1;
  }

  [[nodiscard]] bool send(const std::string& text) const {
    if (broken_) return false;
    const auto size = static_cast<ssize_t>(text.size());
    if (ssl_ != nullptr) return SSL_write(ssl_.get(), text.data(), static_cast<int>(size)) == size;
    return ::send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL) == size;
  }

  // Not positive: the end.
  ssize_t receive(std::span<char> buffer) const {
    if (ssl_ == nullptr) return recv(descriptor_, buffer.data(), buffer.size(), 0);
    return SSL_read(ssl_.get(), buffer.data(), static_cast<int>(buffer.size()));
  }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }

    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  int descriptor_;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> ssl_;
  bool broken_ = false;
};

// The first line of the reply; empty: no connection or no reply in time.
std::string first_line(const addrinfo& address, bool tls, const std::string& request) {
  const Socket socket_fd(socket(address.ai_family, address.ai_socktype, address.ai_protocol));
  if (socket_fd.get() < 0) return {};
  const timeval timeout = {kTimeoutSeconds, 0};
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);  // and connect
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (connect(socket_fd.get(), address.ai_addr, address.ai_addrlen) != 0) return {};
  const Channel channel(socket_fd.get(), tls);
  if (!channel.send(request)) return {};
  std::string reply;
  std::array<char, 512> buffer{};
  while (reply.find('\n') == std::string::npos && reply.size() < 4096) {
    const ssize_t count = channel.receive(buffer);
    if (count <= 0) return {};
    reply.append(buffer.data(), static_cast<size_t>(count));
  }
  return reply.substr(0, reply.find_first_of("\r\n"));
}

// Where the environment tells the server in the same container to listen.
Expected<std::string> url_from_environment() {
  Config config;
  SLUICE_TRY_VOID(apply_environment(config));
  if (!config.uds.empty()) return "unix:" + config.uds;
  return std::string(config.ssl_certfile.empty() ? "http" : "https") +
         "://127.0.0.1:" + std::to_string(config.port);
}

// The reply's first line over a Unix socket.
std::string first_line_over_unix(const std::string& path, const std::string& request) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  addrinfo address = {};
  address.ai_family = AF_UNIX;
  address.ai_socktype = SOCK_STREAM;
  address.ai_addr = reinterpret_cast<sockaddr*>(&name);
  address.ai_addrlen = sizeof name;
  return first_line(address, /*tls=*/false, request);
}

Expected<std::string> first_line_over_tcp(const load::ServerAddress& target,
                                          const std::string& url,
                                          const std::string& request) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found);
  if (failed != 0) {
    return make_error(ErrorCode::kNotFound, url + ": " + gai_strerror(failed));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  std::string line;
  for (const addrinfo* a = found; a != nullptr && line.empty(); a = a->ai_next) {
    line = first_line(*a, target.tls, request);
  }
  return line;
}

}  // namespace

Expected<void> run_health(const Invocation& invocation) {
  std::string url = invocation.url;
  if (url.empty()) {
    SLUICE_TRY(url, url_from_environment());
  }
  SLUICE_TRY(const Place place, parse_url(url));
  const std::string host = place.uds.empty() ? place.address.authority() : "localhost";
  const std::string request =
      "GET /health HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
  std::string line;
  if (place.uds.empty()) {
    SLUICE_TRY(line, first_line_over_tcp(place.address, url, request));
  } else {
    line = first_line_over_unix(place.uds, request);
  }
  if (line.empty()) return make_error(ErrorCode::kUnavailable, url + ": no reply");
  if (!line.starts_with("HTTP/1.1 200")) {
    return make_error(ErrorCode::kUnavailable, url + ": " + line);
  }
  std::puts("healthy");
  return {};
}

}  // namespace sluice
