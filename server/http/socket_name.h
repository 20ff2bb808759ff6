// SPDX-License-Identifier: Apache-2.0
// "host:port" as flags have it, with IPv6 addresses in brackets.
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

// Nothing: the text is none.
std::optional<SocketName> parse_socket_name(std::string_view text);
std::string text_of(const SocketName& name);

// Every address of a machine, to which nobody can connect: "*", 0.0.0.0, ::.
bool is_any_host(std::string_view host);

// Of this machine alone, whatever resolves it: localhost, 127.0.0.0/8, ::1.
bool is_loopback(std::string_view host);

}  // namespace sluice
