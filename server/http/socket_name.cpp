// SPDX-License-Identifier: Apache-2.0
#include "server/http/socket_name.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <array>
#include <charconv>

namespace sluice {

std::optional<SocketName> parse_socket_name(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (has_brackets) host = host.substr(1, host.size() - 2);
  if (!has_brackets && host.find_first_of(":[]") != std::string_view::npos) return std::nullopt;
  constexpr int32_t kMostPort = 65535;
  SocketName name{std::string(host), 0};
  const char* const end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, name.port);
  const bool is_number = !digits.empty() && parsed.ec == std::errc() && parsed.ptr == end;
  if (host.empty() || !is_number || name.port < 0 || name.port > kMostPort) return std::nullopt;
  return name;
}

std::string text_of(const SocketName& name) {
  const bool is_ipv6 = name.host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + name.host + "]" : name.host) + ":" + std::to_string(name.port);
}

std::string peer_name(int descriptor) {
  sockaddr_storage peer = {};
  socklen_t size = sizeof peer;
  auto* const generic = reinterpret_cast<sockaddr*>(&peer);
  if (getpeername(descriptor, generic, &size) != 0) return {};
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (peer.ss_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(peer);
    inet_ntop(AF_INET, &address.sin_addr, host.data(), host.size());
    return text_of({host.data(), ntohs(address.sin_port)});
  }
  if (peer.ss_family != AF_INET6) return {};
  const auto& address = reinterpret_cast<const sockaddr_in6&>(peer);
  inet_ntop(AF_INET6, &address.sin6_addr, host.data(), host.size());
  return text_of({host.data(), ntohs(address.sin6_port)});
}

bool is_any_host(std::string_view host) { return host == "*" || host == "0.0.0.0" || host == "::"; }

bool is_loopback(std::string_view host) {
  const std::string text(host);
  in_addr address = {};
  constexpr uint32_t kLoopbackByte = 127;
  if (inet_pton(AF_INET, text.c_str(), &address) == 1) {
    return ntohl(address.s_addr) >> 24 == kLoopbackByte;
  }
  in6_addr wide = {};
  if (inet_pton(AF_INET6, text.c_str(), &wide) != 1) return host == "localhost";
  constexpr size_t kInMapped = 12;  // ::ffff:127.0.0.1
  return IN6_IS_ADDR_LOOPBACK(&wide) ||
         (IN6_IS_ADDR_V4MAPPED(&wide) && wide.s6_addr[kInMapped] == kLoopbackByte);
}

}  // namespace sluice
