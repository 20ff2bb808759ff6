// SPDX-License-Identifier: Apache-2.0
#include "server/http/cors.h"

#include <algorithm>

#include "engine/core/config.h"

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

}  // namespace

CorsPolicy::CorsPolicy(const Config& config)
    : origins_(config.allowed_origins),
      any_origin_(has_star(config.allowed_origins)),
      with_credentials_(config.allow_credentials && !any_origin_),
      methods_(has_star(config.allowed_methods) ? "GET, HEAD, POST, DELETE, OPTIONS"
                                                : join(config.allowed_methods)),
      headers_(has_star(config.allowed_headers) ? std::string() : join(config.allowed_headers)) {}

bool CorsPolicy::allows(std::string_view origin) const {
  return any_origin_ || std::ranges::find(origins_, origin) != origins_.end();
}

std::string CorsPolicy::header_lines(std::string_view origin) const {
  // With a star browsers send no credentials; to name each origin instead would let every page that
  // somebody opens use what the browser knows.
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
