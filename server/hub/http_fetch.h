// SPDX-License-Identifier: Apache-2.0
// One HTTP/1.1 request and its answer, on the calling thread, which has nothing else to do.
// Plain or TLS, through the proxy that the environment names; a connection serves one request.
#pragma once

#include <chrono>
#include <map>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/status.h"

namespace sluice::hub {

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body = {};       // sent with its length where it is not empty
  std::string ca_file = {};    // PEM; whose certificates are believed in place of the system's
  bool may_use_proxy = true;   // false: whatever the environment names
  std::stop_token stop = {};   // ends the request with kUnavailable
};

struct HttpHead {
  int status = 0;
  std::map<std::string, std::string, std::less<>> fields;  // names in lower case; the first of each

  // Empty: not there.
  [[nodiscard]] std::string_view field(std::string_view name) const;
};

// Takes an answer as it comes. An Error ends the request and is its result.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  virtual Expected<void> on_head(const HttpHead& head) = 0;
  virtual Expected<void> on_body(std::string_view bytes) = 0;
};

// The head once the whole answer is in. kUnavailable: no address, no connection, a cut one, or
// silence for half a minute; kInvalidArgument: no URL of http or https. Messages begin with the
// URL.
Expected<HttpHead> http_fetch(const HttpRequest& request, HttpSink& sink);

// Blocks the calling thread.
void pause_for(std::chrono::milliseconds time);

// "https://host" or "https://host:port", which decides who may see a token; empty: no URL of http
// or https.
std::string origin_of(const std::string& url);
// What `location` means in an answer from `url`; empty: nothing we follow.
std::string resolve_location(const std::string& url, std::string_view location);

}  // namespace sluice::hub
