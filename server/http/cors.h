// SPDX-License-Identifier: Apache-2.0
// The pages of other origins that a browser lets use the server (the Fetch standard's CORS
// protocol).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_message.h"

namespace sluice {

struct Config;

class CorsPolicy {
 public:
  explicit CorsPolicy(const Config& config);

  // Returns the header lines of every response to a request with this Origin header; empty: no
  // header.
  [[nodiscard]] std::string header_lines(std::string_view origin) const;

  // Returns the additional headers of a preflight's answer. `wanted_headers`: the preflight's
  // Access-Control-Request-Headers.
  [[nodiscard]] HttpHeaders preflight_headers(std::string_view origin,
                                              std::string_view wanted_headers) const;

 private:
  [[nodiscard]] bool allows(std::string_view origin) const;

  std::vector<std::string> origins_;
  bool any_origin_;
  bool with_credentials_;
  std::string methods_;
  std::string headers_;  // empty: all requested headers are allowed
};

}  // namespace sluice
