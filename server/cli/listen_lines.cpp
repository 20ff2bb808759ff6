// SPDX-License-Identifier: Apache-2.0
#include "server/cli/listen_lines.h"

#include <cstdio>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "server/http/socket_name.h"
#include "server/http_server.h"

namespace sluice {
namespace {

constexpr int32_t kCertificateRequired = 2;  // --ssl-cert-reqs

}  // namespace

std::string url_of(const Config& config, int port) {
  if (!config.uds.empty()) return "unix:" + config.uds;
  return (config.ssl_certfile.empty() ? "http://" : "https://") + text_of({config.host, port});
}

void warn_of_exposure(const Config& config) {
  const bool is_local = !config.uds.empty() || is_loopback(config.host);
  const bool has_key = !config.api_key.empty() || !config.api_key_file.empty() ||
                       config.ssl_cert_reqs == kCertificateRequired;
  if (is_local || has_key) return;
  log_event(LogLevel::kWarning,
            "no_key",
            "host",
            config.host,
            "reason",
            "whoever reaches this address may use the server; set --api-key or --api-key-file");
}

void print_listeners(const Config& config, const HttpServer& server) {
  if (server.grpc_port() != 0) {
    const std::string& host = config.grpc_host.empty() ? config.host : config.grpc_host;
    std::printf("gRPC on %s\n", text_of({host, server.grpc_port()}).c_str());
  }
  if (server.worker_port() != 0) {
    const auto name = parse_socket_name(config.worker_listen);
    std::printf("routers on %s\n", text_of({name->host, server.worker_port()}).c_str());
  }
}

}  // namespace sluice
