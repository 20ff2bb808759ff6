// SPDX-License-Identifier: Apache-2.0
// What pages may do with the server in a browser (the Fetch standard's CORS protocol), and which
// requests are refused because a page without that permission sent them.
//
// The rule; deploy/security.md states it for operators:
//  - Origin. --allowed-origins names whose pages may use the server. Where it is not set, any page
//    may with an API key, because it has to know one; without a key only the server's own pages and
//    those of this machine may. A request of another page runs only if it is a GET or HEAD: what
//    these answer, the browser keeps from the page.
//  - Host. A page can have its own name point to this machine (DNS rebinding), and is then the
//    server's "own" page. So a server that listens on loopback without a key, or that has
//    --allowed-hosts, takes only names that the page's owner cannot have: addresses, this machine's
//    names, the one it is bound to, private names, and those that are listed. Others are refused
//    where a key would be asked for, unless the Origin is allowed by itself.
//  - Programs send no Origin. A browser sends it with every method but GET and HEAD, so the rest
//    runs without one whatever Host is.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "server/http/http_message.h"

namespace sluice {

struct Config;

class CorsPolicy {
 public:
  // Looks up --host where it is a name.
  explicit CorsPolicy(const Config& config);

  // Returns the header lines of every response to a request with this Origin header; empty: no
  // header.
  [[nodiscard]] std::string header_lines(std::string_view origin) const;

  // Returns the additional headers of a preflight's answer. `wanted_headers`: the preflight's
  // Access-Control-Request-Headers.
  [[nodiscard]] HttpHeaders preflight_headers(std::string_view origin,
                                              std::string_view wanted_headers) const;

  // Returns why the request must not run; nothing: it may. `is_open`: its path needs no key.
  [[nodiscard]] std::optional<Error> refusal(const HttpRequest& request, bool is_open) const;

 private:
  // Tells whether pages of the origin may use the server from wherever they were loaded.
  [[nodiscard]] bool allows(std::string_view origin) const;
  [[nodiscard]] bool is_own_name(std::string_view host) const;

  std::vector<std::string> origins_;
  bool any_origin_;
  bool this_machine_;  // pages of this machine may
  bool with_credentials_;
  std::vector<std::string> hosts_;
  bool checks_hosts_;
  std::string methods_;
  std::string headers_;  // empty: all requested headers are allowed
};

}  // namespace sluice
