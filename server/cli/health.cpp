// SPDX-License-Identifier: Apache-2.0
// A GET of /health in plain sockets: what a container's health check runs, without curl.
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "server/cli/command.h"

namespace sluice {
namespace {

constexpr int kTimeoutSeconds = 5;

struct HttpAddress {
  std::string host;
  std::string port;
};

Expected<HttpAddress> parse_url(const std::string& url) {
  static constexpr std::string_view kScheme = "http://";
  const auto fail = [&url] {
    return make_error(ErrorCode::kInvalidArgument,
                      "--url must look like http://127.0.0.1:8000, got \"" + url + "\"");
  };
  if (!url.starts_with(kScheme)) return fail();
  std::string authority = url.substr(kScheme.size());
  authority = authority.substr(0, authority.find('/'));
  HttpAddress address;
  size_t colon = authority.rfind(':');
  if (authority.starts_with('[')) {  // IPv6
    const size_t end = authority.find(']');
    if (end == std::string::npos) return fail();
    address.host = authority.substr(1, end - 1);
    if (colon < end) colon = std::string::npos;
  } else {
    address.host = authority.substr(0, colon);
  }
  address.port = colon == std::string::npos ? "80" : authority.substr(colon + 1);
  if (address.host.empty() || address.port.empty()) return fail();
  return address;
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

// The first line of the reply; empty: no connection or no reply in time.
std::string first_line(const addrinfo& address, const std::string& request) {
  const Socket socket_fd(socket(address.ai_family, address.ai_socktype, address.ai_protocol));
  if (socket_fd.get() < 0) return {};
  const timeval timeout = {kTimeoutSeconds, 0};
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);  // and connect
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (connect(socket_fd.get(), address.ai_addr, address.ai_addrlen) != 0) return {};
  if (send(socket_fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return {};
  }
  std::string reply;
  char buffer[512];
  while (reply.find('\n') == std::string::npos && reply.size() < 4096) {
    const ssize_t count = recv(socket_fd.get(), buffer, sizeof buffer, 0);
    if (count <= 0) return {};
    reply.append(buffer, static_cast<size_t>(count));
  }
  return reply.substr(0, reply.find_first_of("\r\n"));
}

}  // namespace

Expected<void> run_health(const Invocation& invocation) {
  std::string url = invocation.url;
  if (url.empty()) {  // the port that the environment gives the server in the same container
    Config config;
    SLUICE_TRY_VOID(apply_environment(config));
    url = "http://127.0.0.1:" + std::to_string(config.port);
  }
  SLUICE_TRY(const HttpAddress target, parse_url(url));

  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found);
  if (failed != 0) {
    return make_error(ErrorCode::kNotFound, url + ": " + gai_strerror(failed));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  const std::string request =
      "GET /health HTTP/1.1\r\nHost: " + target.host + "\r\nConnection: close\r\n\r\n";
  std::string line;
  for (const addrinfo* a = found; a != nullptr && line.empty(); a = a->ai_next) {
    line = first_line(*a, request);
  }
  if (line.empty()) return make_error(ErrorCode::kUnavailable, url + ": no reply");
  if (!line.starts_with("HTTP/1.1 200")) {
    return make_error(ErrorCode::kUnavailable, url + ": " + line);
  }
  std::puts("healthy");
  return {};
}

}  // namespace sluice
