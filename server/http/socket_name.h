// SPDX-License-Identifier: Apache-2.0
// Names of sockets in flags: "host:port", with IPv6 addresses in brackets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct SocketName {
  std::string host;  // without brackets; not empty
  int32_t port = 0;  // [0, 65535]

  bool operator==(const SocketName&) const = default;
};

// Returns nothing if the text is not such a name.
std::optional<SocketName> parse_socket_name(std::string_view text);
std::string text_of(const SocketName& name);

// Returns the host:port of a connected TCP socket's peer; empty: another kind, or it is gone.
std::string peer_name(int descriptor);

// Tells whether the host means every address, to which no client can connect: "*", 0.0.0.0,
// ::.
bool is_any_host(std::string_view host);

// Tells whether the host is this machine under any resolver: localhost, 127.0.0.0/8, ::1.
bool is_loopback(std::string_view host);

}  // namespace sluice
