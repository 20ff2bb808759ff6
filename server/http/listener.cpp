// SPDX-License-Identifier: Apache-2.0
#include "server/http/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/core/config.h"

namespace sluice {
namespace {

constexpr int kSocketFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

tl::unexpected<Error> uds_error(const std::string& path, const std::string& what) {
  return make_error(ErrorCode::kUnavailable, "--uds: '" + path + "' " + what + ".", "uds");
}

// Removes a stale socket file at the path.
Expected<void> remove_stale(const std::string& path, const sockaddr_un& address) {
  struct stat found = {};
  if (::lstat(path.c_str(), &found) != 0) return {};  // bind() reports other errors
  if (!S_ISSOCK(found.st_mode)) return uds_error(path, "exists and is no socket");
  const int probe = ::socket(AF_UNIX, kSocketFlags, 0);
  const bool in_use =
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno != ECONNREFUSED;
  ::close(probe);
  if (in_use) return uds_error(path, "is in use by another server");
  if (::unlink(path.c_str()) != 0) {
    return uds_error(path, std::string("cannot be replaced: ") + std::strerror(errno));
  }
  return {};
}

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { ::freeaddrinfo(addresses); }
};

Expected<std::unique_ptr<addrinfo, FreeAddresses>> resolve(const std::string& host, int32_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--host: '" + host + "' is no address of this machine (" +
                          ::gai_strerror(failed) + "). Use 127.0.0.1, 0.0.0.0 or ::.",
                      "host");
  }
  return std::unique_ptr<addrinfo, FreeAddresses>(found);
}

uint16_t bound_port(int descriptor) {
  sockaddr_storage bound = {};
  socklen_t length = sizeof bound;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

Expected<std::unique_ptr<Listener>> Listener::create(const Config& config, Sharing sharing) {
  std::unique_ptr<Listener> made(new Listener());
  if (!config.uds.empty()) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (config.uds.size() >= sizeof address.sun_path) {
      return uds_error(config.uds,
                       "is longer than " + std::to_string(sizeof address.sun_path - 1) + " bytes");
    }
    std::memcpy(address.sun_path, config.uds.data(), config.uds.size());
    SLUICE_TRY_VOID(remove_stale(config.uds, address));
    made->family_ = AF_UNIX;
    made->descriptor_ = ::socket(AF_UNIX, kSocketFlags, 0);
    if (::bind(made->descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      return uds_error(config.uds, std::string("cannot be made: ") + std::strerror(errno));
    }
    made->path_ = config.uds;
    if (::listen(made->descriptor_, SOMAXCONN) != 0) {
      return uds_error(config.uds, std::string("cannot be listened on: ") + std::strerror(errno));
    }
    return made;
  }
  SLUICE_TRY(const auto found, resolve(config.host, config.port));
  made->family_ = found->ai_family;
  made->descriptor_ = ::socket(found->ai_family, kSocketFlags, 0);
  const int one = 1;
  ::setsockopt(made->descriptor_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (sharing == Sharing::kWithNext) {
    ::setsockopt(made->descriptor_, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
  }
  const bool listens = ::bind(made->descriptor_, found->ai_addr, found->ai_addrlen) == 0 &&
                       ::listen(made->descriptor_, SOMAXCONN) == 0;
  if (!listens && errno == EADDRINUSE) {
    return make_error(ErrorCode::kUnavailable,
                      "Port " + std::to_string(config.port) + " of " + config.host +
                          " is in use; choose another with --port or end its owner.",
                      "port");
  }
  if (!listens) {
    return make_error(ErrorCode::kUnavailable,
                      "Cannot listen on " + config.host + ":" + std::to_string(config.port) + ": " +
                          std::strerror(errno) + ".",
                      "port");
  }
  made->port_ = bound_port(made->descriptor_);
  return made;
}

Expected<std::unique_ptr<Listener>> Listener::adopt(const Config& config, int descriptor) {
  int listens = 0;
  socklen_t length = sizeof listens;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "Descriptor " + std::to_string(descriptor) +
                          " was handed over and is no listening socket.");
  }
  std::unique_ptr<Listener> made(new Listener());
  made->descriptor_ = descriptor;
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  sockaddr_storage bound = {};
  length = sizeof bound;
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &length);
  made->family_ = bound.ss_family;
  if (made->family_ == AF_UNIX) {
    made->path_ = config.uds;
  } else {
    made->port_ = bound_port(descriptor);
  }
  return made;
}

Listener::~Listener() { close(); }

int Listener::accept() const {
  return ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

void Listener::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
}

}  // namespace sluice
