// SPDX-License-Identifier: Apache-2.0
#include "server/cli/listen_lines.h"

#include <cstdio>
#include <string>
#include <string_view>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "engine/engine.h"
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

void print_plan(const std::string& plan, bool is_answer) {
  if (log_is_json() && !is_answer) return log_event(LogLevel::kInfo, "plan", "text", plan);
  std::fputs(plan.c_str(), stdout);
  std::fflush(stdout);
}

void print_ready(const char* verb,
                 const ModelInfo& model,
                 const Config& config,
                 const HttpServer& server,
                 double seconds) {
  std::string grpc;
  std::string routers;
  if (server.grpc_port() != 0) {
    grpc = text_of({config.grpc_host.empty() ? config.host : config.grpc_host, server.grpc_port()});
  }
  if (server.worker_port() != 0) {
    routers = text_of({parse_socket_name(config.worker_listen)->host, server.worker_port()});
  }
  const std::string url = url_of(config, server.port());
  if (log_is_json()) {
    LogLine line(LogLevel::kInfo, verb);
    line.add("model", model.path).add("fingerprint", model.system_fingerprint).add("url", url);
    if (!grpc.empty()) line.add("grpc", grpc);
    if (!routers.empty()) line.add("routers", routers);
    line.add("ready_s", seconds);
    if (log_enabled(LogLevel::kInfo)) line.emit();
    return;
  }
  if (!grpc.empty()) std::printf("gRPC on %s\n", grpc.c_str());
  if (!routers.empty()) std::printf("routers on %s\n", routers.c_str());
  const std::string version =
      verb == std::string_view("routing") ? " (" + model.system_fingerprint + ")" : "";
  std::printf("%s %s%s on %s (ready in %.2f s)\n",
              verb,
              model.path.c_str(),
              version.c_str(),
              url.c_str(),
              seconds);
  std::fflush(stdout);
}

}  // namespace sluice
