// SPDX-License-Identifier: Apache-2.0
#include "server/http/cors.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>

#include "engine/core/config.h"
#include "server/http/host_name.h"

namespace sluice {
namespace {

// Headers that a script of another origin may read, besides the few that it always may.
constexpr std::string_view kExposed =
    "Access-Control-Expose-Headers: x-sluice-ignored-arguments, x-sluice-seed, x-request-id, "
    "retry-after\r\n";

bool has_star(const std::vector<std::string>& list) {
  return std::ranges::find(list, "*") != list.end();
}

std::string join(const std::vector<std::string>& list) {
  std::string joined;
  for (const std::string& item : list) joined += (joined.empty() ? "" : ", ") + item;
  return joined;
}

// Tells whether the text is visible ASCII, which a header line may repeat.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

// An origin as browsers write it.
std::string usual_form(std::string origin) {
  for (char& c : origin) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (origin.ends_with('/')) origin.pop_back();
  return origin;
}

bool has_keys(const Config& config) {
  return !config.api_key.empty() || !config.api_key_file.empty();
}

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { ::freeaddrinfo(addresses); }
};

// Tells whether the server is bound to an address of this machine alone, perhaps by a name.
bool listens_on_loopback(const Config& config) {
  if (!config.uds.empty()) return false;
  const std::string host = parse_authority(config.host).host;
  if (is_this_machine(host)) return true;
  addrinfo* found = nullptr;
  if (is_address(config.host) || ::getaddrinfo(host.c_str(), nullptr, nullptr, &found) != 0) {
    return false;
  }
  const std::unique_ptr<addrinfo, FreeAddresses> owner(found);
  constexpr uint32_t kLoopbackByte = 127;
  if (found->ai_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr;
    return ntohl(address.s_addr) >> 24 == kLoopbackByte;
  }
  if (found->ai_family != AF_INET6) return false;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(found->ai_addr)->sin6_addr);
}

bool is_safe(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "OPTIONS";
}

// Tells whether the page was loaded from this server: by Host, or, where a proxy has changed that,
// by what a browser says itself and no page can set.
bool is_own_page(const HttpRequest& request) {
  if (request.fetch_site == "same-origin") return true;
  const auto page = authority_of_origin(request.origin);
  if (!page) return false;
  Authority server = parse_authority(request.host);
  const bool is_https = request.origin.starts_with("https:");
  if (server.port == (is_https ? "443" : "80")) server.port.clear();
  return *page == server;
}

// A header's value as an error may repeat it.
std::string quoted(std::string_view value) {
  constexpr size_t kMost = 200;
  return is_plain(value) ? "'" + std::string(value.substr(0, kMost)) + "'" : "that is not text";
}

}  // namespace

CorsPolicy::CorsPolicy(const Config& config)
    : any_origin_(has_star(config.allowed_origins) ||
                  (config.allowed_origins.empty() && has_keys(config))),
      this_machine_(config.allowed_origins.empty()),
      with_credentials_(config.allow_credentials && !any_origin_ && !this_machine_),
      methods_(has_star(config.allowed_methods) ? "GET, HEAD, POST, DELETE, OPTIONS"
                                                : join(config.allowed_methods)),
      headers_(has_star(config.allowed_headers) ? std::string() : join(config.allowed_headers)) {
  for (const std::string& origin : config.allowed_origins) origins_.push_back(usual_form(origin));
  const bool is_asked = !config.allowed_hosts.empty() ||
                        (!any_origin_ && !has_keys(config) && listens_on_loopback(config));
  checks_hosts_ = is_asked && !has_star(config.allowed_hosts);
  hosts_.push_back(parse_authority(config.host).host);
  for (const std::string& host : config.allowed_hosts) hosts_.push_back(parse_authority(host).host);
}

bool CorsPolicy::allows(std::string_view origin) const {
  if (any_origin_) return true;
  const std::string usual = usual_form(std::string(origin));
  if (std::ranges::find(origins_, usual) != origins_.end()) return true;
  const auto page = this_machine_ ? authority_of_origin(origin) : std::nullopt;
  return page && is_this_machine(page->host);
}

bool CorsPolicy::is_own_name(std::string_view host) const {
  const std::string name = parse_authority(host).host;
  if (name.empty() || is_address(name) || is_this_machine(name) || is_private_name(name)) {
    return true;
  }
  return std::ranges::any_of(hosts_, [&](const std::string& known) {
    return name == known || (known.starts_with("*.") && name.ends_with(known.substr(1)));
  });
}

std::optional<Error> CorsPolicy::refusal(const HttpRequest& request, bool is_open) const {
  const bool is_of_page = !request.origin.empty();
  if (is_of_page && allows(request.origin)) return std::nullopt;
  const bool can_be_of_page = is_of_page || is_safe(request.method);
  if (checks_hosts_ && !is_open && can_be_of_page && !is_own_name(request.host)) {
    return Error{ErrorCode::kPermissionDenied,
                 "Host is " + quoted(request.host) +
                     ", which is no name of this server; --allowed-hosts adds names.",
                 {},
                 {}};
  }
  if (!is_of_page || is_safe(request.method) || is_own_page(request)) return std::nullopt;
  return Error{ErrorCode::kPermissionDenied,
               "Pages of origin " + quoted(request.origin) +
                   " may not use this server; --allowed-origins names those that may.",
               {},
               {}};
}

std::string CorsPolicy::header_lines(std::string_view origin) const {
  // With a star browsers send no credentials; echoing each origin instead would let any page that a
  // user opens use the browser's credentials.
  if (any_origin_) {
    return "Access-Control-Allow-Origin: *\r\n" + std::string(kExposed);
  }
  std::string lines = "Vary: Origin\r\n";
  if (origin.empty() || !allows(origin) || !is_plain(origin)) return lines;
  lines += "Access-Control-Allow-Origin: " + std::string(origin) + "\r\n";
  lines += kExposed;
  if (with_credentials_) lines += "Access-Control-Allow-Credentials: true\r\n";
  return lines;
}

HttpHeaders CorsPolicy::preflight_headers(std::string_view origin,
                                          std::string_view wanted_headers) const {
  if (!any_origin_ && !allows(origin)) return {};
  // A star does not cover Authorization, nor anything together with credentials.
  std::string headers = headers_;
  if (headers.empty()) {
    const bool repeats = !wanted_headers.empty() && is_plain(wanted_headers);
    headers = repeats ? std::string(wanted_headers) : "*, Authorization";
  }
  return {{"Access-Control-Allow-Methods", methods_},
          {"Access-Control-Allow-Headers", headers},
          {"Access-Control-Max-Age", "86400"}};
}

}  // namespace sluice
