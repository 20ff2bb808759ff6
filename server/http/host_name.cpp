// SPDX-License-Identifier: Apache-2.0
#include "server/http/host_name.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "server/http/socket_name.h"

namespace sluice {
namespace {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

bool is_digits(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

bool is_label(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

}  // namespace

Authority parse_authority(std::string_view text) {
  Authority parsed;
  const size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && is_digits(text.substr(colon + 1))) {
    parsed.port = text.substr(colon + 1);
    text = text.substr(0, colon);
  }
  if (text.starts_with('[') && text.ends_with(']')) {
    text = text.substr(1, text.size() - 2);
    text = text.substr(0, text.find('%'));
  } else if (text.ends_with('.')) {
    text.remove_suffix(1);
  }
  parsed.host = lower_case(text);
  return parsed;
}

std::optional<Authority> authority_of_origin(std::string_view origin) {
  constexpr std::string_view kAfterScheme = "://";
  const size_t end = origin.find(kAfterScheme);
  if (end == std::string_view::npos) return std::nullopt;
  Authority parsed = parse_authority(origin.substr(end + kAfterScheme.size()));
  if (parsed.host.empty()) return std::nullopt;  // "file://"
  const std::string scheme = lower_case(origin.substr(0, end));
  if (parsed.port == (scheme == "https" ? "443" : "80")) parsed.port.clear();
  return parsed;
}

bool is_address(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

bool is_this_machine(const std::string& host) {
  return is_loopback(host) || host.ends_with(".localhost");
}

bool is_private_name(std::string_view host) {
  constexpr std::array<std::string_view, 4> kPrivateEnds = {
      ".internal", ".local", ".home.arpa", ".svc"};
  return is_label(host) || std::ranges::any_of(kPrivateEnds, [&](std::string_view end) {
    return host.ends_with(end);
  });
}

}  // namespace sluice
