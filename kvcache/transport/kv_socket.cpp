// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/kv_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>

namespace sluice {

bool watch_descriptor(int epoll, int fd, uint64_t datum) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = datum;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

std::optional<size_t> send_parts(int socket, std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return socket_result(::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

std::optional<size_t> receive_bytes(int socket,
                                    std::span<std::byte> out,
                                    kernels::KvChecksum* sum) {
  const ssize_t count = ::recv(socket, out.data(), out.size(), MSG_DONTWAIT);
  if (count == 0) return std::nullopt;
  if (count > 0 && sum != nullptr) sum->add(out.first(static_cast<size_t>(count)));
  return socket_result(count);
}

std::optional<size_t> socket_result(int64_t count) {
  if (count >= 0) return static_cast<size_t>(count);
  // ENOTCONN: the connection is still being made.
  const bool is_later = errno == EAGAIN || errno == EINTR || errno == ENOTCONN;
  return is_later ? std::optional<size_t>(0) : std::nullopt;
}

}  // namespace sluice
