// SPDX-License-Identifier: Apache-2.0
// A GET of /health: what a container's health check runs, without curl.
#include <chrono>
#include <cstdio>

#include "server/cli/command.h"
#include "server/http/client/fetch.h"

namespace sluice {
namespace {

constexpr std::chrono::seconds kSilence{5};

// The body says nothing that the status does not.
class NoBody final : public client::ResponseSink {
 public:
  Expected<void> on_head(const client::ResponseHead&) override { return {}; }

  Expected<void> on_body(std::string_view) override { return {}; }
};

Expected<client::FetchRequest> health_request(const std::string& url) {
  static constexpr std::string_view kUnix = "unix:";
  client::FetchRequest request{.url = "http://localhost/health",
                               // Any certificate will do: the question is whether it answers.
                               .verification = client::Verification::kNone,
                               .may_use_proxy = false,
                               .silence = kSilence};
  if (url.starts_with(kUnix)) request.uds = url.substr(kUnix.size());
  if (!request.uds.empty()) return request;
  const auto address = client::parse_base_url(url);
  if (!address) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--url must look like http://127.0.0.1:8000, got \"" + url + "\"",
                      "url");
  }
  request.url = (address->tls ? "https://" : "http://") + address->authority() + "/health";
  return request;
}

// Where the environment tells the server in the same container to listen.
Expected<std::string> url_from_environment() {
  Config config;
  SLUICE_TRY_VOID(apply_environment(config));
  if (!config.uds.empty()) return "unix:" + config.uds;
  return std::string(config.ssl_certfile.empty() ? "http" : "https") +
         "://127.0.0.1:" + std::to_string(config.port);
}

}  // namespace

Expected<void> run_health(const Invocation& invocation) {
  std::string url = invocation.url;
  if (url.empty()) {
    SLUICE_TRY(url, url_from_environment());
  }
  SLUICE_TRY(const client::FetchRequest request, health_request(url));
  NoBody sink;
  SLUICE_TRY(const client::ResponseHead head, client::fetch(request, sink));
  if (head.status != 200) {
    return make_error(ErrorCode::kUnavailable,
                      url + ": status " + std::to_string(head.status) + " " + head.reason);
  }
  std::puts("healthy");
  return {};
}

}  // namespace sluice
