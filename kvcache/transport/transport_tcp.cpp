// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_tcp.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "engine/core/file_descriptor.h"
#include "kvcache/transport/kv_socket.h"

namespace sluice {
namespace {

constexpr int kSocketType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

// Socket buffers are left to the kernel: setting a size ends its tuning, and without privileges is
// capped below what tuning reaches.
class TcpStream final : public KvStream {
 public:
  explicit TcpStream(FileDescriptor fd) : fd_(std::move(fd)) {
    // Keepalive detects a path that is silently gone; whether the peer lives is known elsewhere.
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set(IPPROTO_TCP, TCP_KEEPCNT, 5);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10000);
    set(IPPROTO_TCP, TCP_NODELAY, 1);
  }

  bool watch(int epoll, uint64_t datum) override {
    return watch_descriptor(epoll, fd_.get(), datum);
  }

  std::optional<size_t> write(std::span<const iovec> parts) override {
    return send_parts(fd_.get(), parts);
  }

  std::optional<size_t> read(std::span<std::byte> out, kernels::KvChecksum* sum) override {
    return receive_bytes(fd_.get(), out, sum);
  }

 private:
  void set(int level, int option, int value) {
    setsockopt(fd_.get(), level, option, &value, sizeof(value));
  }

  const FileDescriptor fd_;
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
  TcpStreams(FileDescriptor listener, std::string address, int32_t num_streams)
      : listener_(std::move(listener)), address_(std::move(address)), num_streams_(num_streams) {}

  [[nodiscard]] std::string_view kind() const override { return "tcp"; }

  [[nodiscard]] std::string address() const override { return address_; }

  [[nodiscard]] int32_t num_streams() const override { return num_streams_; }

  [[nodiscard]] int listener() const override { return listener_.get(); }

  [[nodiscard]] bool is_address(std::string_view address) const override {
    return resolve(address).has_value();
  }

  std::unique_ptr<KvStream> accept() override {
    FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    return fd.is_open() ? std::make_unique<TcpStream>(std::move(fd)) : nullptr;
  }

  std::unique_ptr<KvStream> dial(const std::string& address) override {
    const auto at = resolve(address);
    if (!at) return nullptr;
    FileDescriptor fd(socket(at->address.ss_family, kSocketType, 0));
    if (!fd.is_open()) return nullptr;
    const int error = connect(fd.get(), reinterpret_cast<const sockaddr*>(&at->address), at->size);
    if (error != 0 && errno != EINPROGRESS) return nullptr;
    return std::make_unique<TcpStream>(std::move(fd));
  }

 private:
  const FileDescriptor listener_;
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
  FileDescriptor fd(socket(at->address.ss_family, kSocketType, 0));
  if (!fd.is_open()) return refuse(std::strerror(errno));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  constexpr int kBacklog = 128;
  auto* address = reinterpret_cast<sockaddr*>(&at->address);
  if (bind(fd.get(), address, at->size) != 0 || listen(fd.get(), kBacklog) != 0 ||
      getsockname(fd.get(), address, &at->size) != 0) {
    return refuse(std::strerror(errno));
  }
  return std::make_unique<TcpStreams>(std::move(fd), name_of(*at), options.num_connections);
}

}  // namespace sluice
