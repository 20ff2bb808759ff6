// SPDX-License-Identifier: Apache-2.0
// Ports for what a test starts later, or never.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "engine/core/status.h"

namespace sluice::testing {

// Returns a port of 127.0.0.1 that nobody else is given until this process ends: it stays bound
// here, beside which only who names it and sets SO_REUSEADDR may listen.
inline uint16_t free_port() {
  const int held = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  CHECK(::setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        ::bind(held, reinterpret_cast<const sockaddr*>(&at), size) == 0 &&
        ::getsockname(held, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  return ntohs(at.sin_port);
}

}  // namespace sluice::testing
