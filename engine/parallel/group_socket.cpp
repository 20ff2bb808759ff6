// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/group_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// A part of an exchange usually comes within the time that parking would take.
constexpr auto kSpinOnSocket = std::chrono::microseconds(30);

int poll_ms(GroupDeadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
}

// False: not before the deadline.
bool wait_for(int fd, short events, GroupDeadline deadline) {
  pollfd item = {.fd = fd, .events = events, .revents = 0};
  for (;;) {
    const int found = poll(&item, 1, poll_ms(deadline));
    if (found > 0) return true;
    if (found == 0 ? Clock::now() >= deadline : errno != EINTR) return false;
  }
}

tl::unexpected<Error> ended(int error) {
  return make_error(ErrorCode::kUnavailable,
                    error == 0 ? "the connection was closed" : std::strerror(error));
}

class Addresses {
 public:
  Addresses(const std::string& host, uint16_t port, bool to_listen) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
    error_ = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first_);
    if (error_ != 0) first_ = nullptr;
  }

  ~Addresses() {
    if (first_ != nullptr) freeaddrinfo(first_);
  }

  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  [[nodiscard]] const addrinfo* first() const { return first_; }

  [[nodiscard]] std::string why() const { return error_ == 0 ? "" : gai_strerror(error_); }

 private:
  int error_ = 0;
  addrinfo* first_ = nullptr;
};

struct Name {
  std::string host;
  std::string port;
};

Name name_of(const sockaddr_storage& at, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  getnameinfo(reinterpret_cast<const sockaddr*>(&at),
              size,
              host.data(),
              host.size(),
              port.data(),
              port.size(),
              NI_NUMERICHOST | NI_NUMERICSERV);
  // An IPv4 address as a socket for both kinds shows it.
  constexpr std::string_view kMapped = "::ffff:";
  std::string_view name = host.data();
  if (name.starts_with(kMapped) && name.find('.') != name.npos) name.remove_prefix(kMapped.size());
  return {.host = std::string(name), .port = port.data()};
}

std::string text_of(const Name& name) {
  const bool is_v6 = name.host.find(':') != std::string::npos;
  return (is_v6 ? "[" + name.host + "]" : name.host) + ":" + name.port;
}

bool is_address(const std::string& host) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

bool can_use_v6() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

}  // namespace

GroupSocket::GroupSocket(int fd) : fd_(fd) {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);  // unacknowledged bytes on a path that is gone
}

GroupSocket::~GroupSocket() { ::close(fd_); }

Expected<std::unique_ptr<GroupSocket>> GroupSocket::dial(const std::string& host,
                                                         uint16_t port,
                                                         GroupDeadline deadline) {
  const Addresses found(host, port, false);
  std::string why = found.why();
  for (const addrinfo* at = found.first(); at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return ended(errno);
    auto made = std::make_unique<GroupSocket>(fd);
    int error = connect(fd, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof(error);
      if (!wait_for(fd, POLLOUT, deadline)) {
        error = ETIMEDOUT;
      } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        error = errno;
      }
    }
    if (error == 0) return made;
    why = std::strerror(error);
  }
  return make_error(ErrorCode::kUnavailable, why);
}

Expected<size_t> GroupSocket::send_now(std::span<const std::byte> bytes) {
  const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count >= 0) return static_cast<size_t>(count);
  if (errno == EAGAIN || errno == EINTR) return 0;
  return ended(errno);
}

Expected<size_t> GroupSocket::receive_now(std::span<std::byte> bytes) {
  const ssize_t count = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count > 0) return static_cast<size_t>(count);
  if (count == 0) return ended(0);
  if (errno == EAGAIN || errno == EINTR) return 0;
  return ended(errno);
}

Expected<void> GroupSocket::send(std::span<const std::byte> bytes, GroupDeadline deadline) {
  while (!bytes.empty()) {
    SLUICE_TRY(const size_t count, send_now(bytes));
    bytes = bytes.subspan(count);
    if (!bytes.empty() && count == 0 && !wait_for(fd_, POLLOUT, deadline)) {
      return make_error(ErrorCode::kDeadlineExceeded, "it does not take what is sent");
    }
  }
  return {};
}

Expected<void> GroupSocket::receive(std::span<std::byte> bytes, GroupDeadline deadline) {
  const auto spin_until = Clock::now() + kSpinOnSocket;
  while (!bytes.empty()) {
    SLUICE_TRY(const size_t count, receive_now(bytes));
    bytes = bytes.subspan(count);
    if (bytes.empty() || count > 0 || Clock::now() < spin_until) continue;
    if (!wait_for(fd_, POLLIN, deadline)) {
      return make_error(ErrorCode::kDeadlineExceeded, "it sends nothing");
    }
  }
  return {};
}

void GroupSocket::finish() { shutdown(fd_, SHUT_WR); }

void GroupSocket::close_now() { shutdown(fd_, SHUT_RDWR); }

std::string GroupSocket::peer() const {
  sockaddr_storage at{};
  socklen_t size = sizeof(at);
  if (getpeername(fd_, reinterpret_cast<sockaddr*>(&at), &size) != 0) return "a closed connection";
  return text_of(name_of(at, size));
}

std::string GroupSocket::own_host() const {
  sockaddr_storage at{};
  socklen_t size = sizeof(at);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size) != 0) return "";
  return name_of(at, size).host;
}

Expected<std::unique_ptr<GroupListener>> GroupListener::open(const std::string& host,
                                                             uint16_t port) {
  const auto refuse = [&](const std::string& why) {
    return make_error(ErrorCode::kInvalidArgument,
                      "cannot listen at " + host + ":" + std::to_string(port) + ": " + why,
                      "master-addr");
  };
  const bool is_one = is_address(host) || host == "localhost";
  const Addresses found(is_one ? host : can_use_v6() ? "::" : "0.0.0.0", port, true);
  if (found.first() == nullptr) return refuse(found.why());
  const addrinfo& at = *found.first();
  const int fd = socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return refuse(std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const int off = 0;
  if (!is_one) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  constexpr int kBacklog = 32;
  if (bind(fd, at.ai_addr, at.ai_addrlen) != 0 || listen(fd, kBacklog) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    const int error = errno;
    ::close(fd);
    return refuse(std::strerror(error));
  }
  const Name own = name_of(bound, size);
  const auto number = static_cast<uint16_t>(std::stoul(own.port));
  return std::unique_ptr<GroupListener>(new GroupListener(fd, number, text_of(own)));
}

GroupListener::~GroupListener() { ::close(fd_); }

std::unique_ptr<GroupSocket> GroupListener::accept(GroupDeadline deadline) {
  if (!wait_for(fd_, POLLIN, deadline)) return nullptr;
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  return fd < 0 ? nullptr : std::make_unique<GroupSocket>(fd);
}

}  // namespace sluice
