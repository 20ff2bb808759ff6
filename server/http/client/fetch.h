// SPDX-License-Identifier: Apache-2.0
// One HTTP/1.1 request and its answer, on the calling thread, which has nothing else to do.
// Plain or TLS, through the proxy that the environment names; a connection serves one request.
#pragma once

#include <chrono>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "server/http/client/response.h"
#include "server/http/client/stream.h"

namespace sluice::client {

struct FetchRequest {
  std::string method = "GET";
  std::string url = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};  // sent with its length unless empty
  std::string uds = {};   // the path of a Unix socket to connect to; empty: to the URL's host
  std::string ca_file = {};  // PEM certificates to verify with; empty: the system's
  Verification verification = Verification::kCertificate;
  bool may_use_proxy = true;         // false: whatever the environment names
  std::chrono::seconds silence{30};  // the longest wait for a connection, or for more bytes
  std::stop_token stop = {};         // ends the request with kUnavailable
};

// Returns the head once the whole answer is in. An Error of the sink ends the request and is its
// result. kUnavailable: no address, no connection, a cut one, or silence; kInvalidArgument: no URL
// of http or https. Messages begin with the URL.
Expected<ResponseHead> fetch(const FetchRequest& request, ResponseSink& sink);

// Blocks the calling thread.
void pause_for(std::chrono::milliseconds time);

// Returns "https://host" or "https://host:port", which decides who may see a token; empty: no URL
// of http or https.
std::string origin_of(const std::string& url);
// Returns the URL that `location` means in an answer from `url`; empty: none that is followed.
std::string resolve_location(const std::string& url, std::string_view location);

}  // namespace sluice::client
