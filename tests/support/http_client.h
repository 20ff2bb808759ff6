// SPDX-License-Identifier: Apache-2.0
// A blocking client that sends raw bytes, so that tests can send what no library would.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace sluice {

struct HttpReply {
  int status = 0;  // 0: the connection ended first
  std::string head;
  std::string body;  // chunks joined

  [[nodiscard]] std::string header(const std::string& name) const {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return {};
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }

  // Connects to a Unix socket.
  explicit HttpClient(const std::string& path) {
    fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }

  ~HttpClient() { close(); }

  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  [[nodiscard]] bool is_connected() const { return connected_; }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

  void get(const std::string& path) const { request("GET", path, {}); }

  void post(const std::string& path,
            const std::string& body,
            const std::string& headers = {}) const {
    request("POST", path, body, headers);
  }

  void request(const std::string& method,
               const std::string& path,
               const std::string& body,
               const std::string& headers = {}) const {
    std::string text = method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + headers;
    if (method == "POST") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    send(text + "\r\n" + body);
  }

  // Reads more bytes into the buffer; false at the end of the connection or after a minute.
  bool fill() {
    pollfd poll_fd{fd_, POLLIN, 0};
    if (::poll(&poll_fd, 1, 60'000) <= 0) return false;
    char bytes[4096];
    const ssize_t num_read = ::recv(fd_, bytes, sizeof bytes, 0);
    if (num_read <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(num_read));
    return true;
  }

  // Whether the server ends the connection without another byte.
  bool at_end() { return buffer_.empty() && !fill(); }

  // Reads up to and including `end`; empty if the connection ends before.
  std::string read_until(std::string_view end) {
    size_t at = 0;
    while ((at = buffer_.find(end)) == std::string::npos) {
      if (!fill()) return {};
    }
    std::string out = buffer_.substr(0, at + end.size());
    buffer_.erase(0, out.size());
    return out;
  }

  HttpReply read_reply(bool has_body = true) {
    HttpReply reply;
    reply.head = read_until("\r\n\r\n");
    if (reply.head.size() < 12) return reply;
    reply.status = std::atoi(reply.head.c_str() + 9);
    if (!has_body || reply.status == 204 || reply.status == 100) return reply;
    if (reply.header("Transfer-Encoding") == "chunked") {
      for (std::string chunk = read_chunk(); !chunk.empty(); chunk = read_chunk()) {
        reply.body += chunk;
      }
    } else {
      reply.body =
          read_exactly(static_cast<size_t>(std::atoll(reply.header("Content-Length").c_str())));
    }
    return reply;
  }

  // Reads one chunk's data; empty for the last chunk.
  std::string read_chunk() {
    const std::string line = read_until("\r\n");
    const size_t size = std::strtoull(line.c_str(), nullptr, 16);
    std::string data = read_exactly(size + 2);
    if (data.size() >= 2) data.resize(data.size() - 2);
    return data;
  }

 private:
  std::string read_exactly(size_t size) {
    while (buffer_.size() < size) {
      if (!fill()) break;
    }
    std::string out = buffer_.substr(0, size);
    buffer_.erase(0, out.size());
    return out;
  }

  int fd_ = -1;
  bool connected_ = false;
  std::string buffer_;
};

}  // namespace sluice
