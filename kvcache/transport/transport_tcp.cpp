// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_tcp.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace sluice {
namespace {

// Socket buffers are left to the kernel: setting a size ends its tuning, and without privileges is
// capped below what tuning reaches.
class TcpStream final : public KvStream {
 public:
  explicit TcpStream(int fd) : fd_(fd) {
    // Keepalive detects a path that is silently gone; whether the peer lives is known elsewhere.
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set(IPPROTO_TCP, TCP_KEEPCNT, 5);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10000);
    set(IPPROTO_TCP, TCP_NODELAY, 1);
  }

  ~TcpStream() override { ::close(fd_); }

  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  bool watch(int epoll, uint64_t datum) override {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.u64 = datum;
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd_, &event) == 0;
  }

  std::optional<size_t> write(std::span<const iovec> parts) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    return result_of(::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  std::optional<size_t> read(std::span<std::byte> out, kernels::KvChecksum* sum) override {
    const ssize_t count = ::recv(fd_, out.data(), out.size(), MSG_DONTWAIT);
    if (count == 0) return std::nullopt;
    if (count > 0 && sum != nullptr) sum->add(out.first(static_cast<size_t>(count)));
    return result_of(count);
  }

 private:
  void set(int level, int option, int value) {
    setsockopt(fd_, level, option, &value, sizeof(value));
  }

  static std::optional<size_t> result_of(ssize_t count) {
    if (count >= 0) return static_cast<size_t>(count);
    // ENOTCONN: the connection is still being made.
    const bool is_later = errno == EAGAIN || errno == EINTR || errno == ENOTCONN;
    return is_later ? std::optional<size_t>(0) : std::nullopt;
  }

  const int fd_;
};

struct Resolved {
  sockaddr_storage address = {};
  socklen_t size = 0;
};

std::optional<Resolved> resolve(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string host(address.substr(0, colon));
  const std::string port(address.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host.empty() || port.empty()) return std::nullopt;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return std::nullopt;
  Resolved resolved;
  std::memcpy(&resolved.address, found->ai_addr, found->ai_addrlen);
  resolved.size = found->ai_addrlen;
  freeaddrinfo(found);
  return resolved;
}

std::string name_of(const Resolved& at) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  getnameinfo(reinterpret_cast<const sockaddr*>(&at.address),
              at.size,
              host.data(),
              host.size(),
              port.data(),
              port.size(),
              NI_NUMERICHOST | NI_NUMERICSERV);
  const std::string name(host.data());
  const bool is_v6 = name.find(':') != std::string::npos;
  return (is_v6 ? "[" + name + "]" : name) + ":" + port.data();
}

class TcpStreams final : public KvStreamMaker {
 public:
  TcpStreams(int listener, std::string address, int32_t num_streams)
      : listener_(listener), address_(std::move(address)), num_streams_(num_streams) {}

  ~TcpStreams() override { ::close(listener_); }

  TcpStreams(const TcpStreams&) = delete;
  TcpStreams& operator=(const TcpStreams&) = delete;

  [[nodiscard]] std::string_view kind() const override { return "tcp"; }

  [[nodiscard]] std::string address() const override { return address_; }

  [[nodiscard]] int32_t num_streams() const override { return num_streams_; }

  [[nodiscard]] int listener() const override { return listener_; }

  [[nodiscard]] bool is_address(std::string_view address) const override {
    return resolve(address).has_value();
  }

  std::unique_ptr<KvStream> accept() override {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return fd < 0 ? nullptr : std::make_unique<TcpStream>(fd);
  }

  std::unique_ptr<KvStream> dial(const std::string& address) override {
    const auto at = resolve(address);
    if (!at) return nullptr;
    const int fd = socket(at->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return nullptr;
    auto stream = std::make_unique<TcpStream>(fd);
    const int error = connect(fd, reinterpret_cast<const sockaddr*>(&at->address), at->size);
    return error == 0 || errno == EINPROGRESS ? std::move(stream) : nullptr;
  }

 private:
  const int listener_;
  const std::string address_;
  const int32_t num_streams_;
};

}  // namespace

Expected<std::unique_ptr<KvStreamMaker>> make_tcp_streams(const KvTransportOptions& options) {
  const auto refuse = [&](const std::string& why) {
    return make_error(ErrorCode::kInvalidArgument,
                      "KV transport tcp: cannot listen at " + options.listen + ": " + why);
  };
  auto at = resolve(options.listen);
  if (!at) return refuse("no numeric address and port");
  const int fd = socket(at->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return refuse(std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  constexpr int kBacklog = 128;
  auto* address = reinterpret_cast<sockaddr*>(&at->address);
  if (bind(fd, address, at->size) != 0 || listen(fd, kBacklog) != 0 ||
      getsockname(fd, address, &at->size) != 0) {
    const int error = errno;
    ::close(fd);
    return refuse(std::strerror(error));
  }
  return std::make_unique<TcpStreams>(fd, name_of(*at), options.num_connections);
}

}  // namespace sluice
