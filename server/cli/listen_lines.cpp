// SPDX-License-Identifier: Apache-2.0
#include "server/cli/listen_lines.h"

#include <cstdio>

#include "engine/core/config.h"
#include "server/http/socket_name.h"
#include "server/http_server.h"

namespace sluice {
namespace {

// Where a client on this machine finds what listens on `host`.
std::string place_of(const std::string& host, int port) {
  return text_of({is_any_host(host) ? "127.0.0.1" : host, port});
}

}  // namespace

std::string url_of(const Config& config, int port) {
  if (!config.uds.empty()) return "unix:" + config.uds;
  return (config.ssl_certfile.empty() ? "http://" : "https://") + place_of(config.host, port);
}

void print_listeners(const Config& config, const HttpServer& server) {
  if (server.grpc_port() != 0) {
    const std::string& host = config.grpc_host.empty() ? config.host : config.grpc_host;
    std::printf("gRPC on %s\n", place_of(host, server.grpc_port()).c_str());
  }
  if (server.worker_port() != 0) {
    const auto name = parse_socket_name(config.worker_listen);
    std::printf("routers on %s\n", place_of(name->host, server.worker_port()).c_str());
  }
}

}  // namespace sluice
