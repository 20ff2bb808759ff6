// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/server_settings.h"

#include <grpc/support/log.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <array>
#include <mutex>
#include <string>

#include "engine/core/config.h"
#include "engine/core/incoming_memory.h"
#include "engine/core/log.h"
#include "server/http/listener.h"

namespace sluice {
namespace {

// Logs gRPC's errors as debug: most are failures of single clients, which could fill a log with
// them.
void log_of_grpc(gpr_log_func_args* args) {
  const bool is_error = args->severity == GPR_LOG_SEVERITY_ERROR;
  log_event(is_error ? LogLevel::kDebug : LogLevel::kTrace,
            "grpc",
            "file",
            args->file,
            "line",
            args->line,
            "message",
            args->message);
}

}  // namespace

void set_up_grpc() {
  static std::once_flag once;
  std::call_once(once, [] { gpr_set_log_function(log_of_grpc); });
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(const Config& config) {
  if (config.ssl_certfile.empty()) return grpc::InsecureServerCredentials();
  using Watcher = grpc::experimental::FileWatcherCertificateProvider;
  constexpr unsigned kRefreshSeconds = 1;
  constexpr std::array kCertReqs = {
      GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
      GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY,
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
  };
  const std::string& key = config.ssl_keyfile.empty() ? config.ssl_certfile : config.ssl_keyfile;
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<Watcher>(key, config.ssl_certfile, config.ssl_ca_certs, kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (!config.ssl_ca_certs.empty()) options.watch_root_certs();
  options.set_cert_request_type(kCertReqs[static_cast<size_t>(config.ssl_cert_reqs)]);
  return grpc::experimental::TlsServerCredentials(options);
}

void set_memory_limit(grpc::ServerBuilder& builder, int64_t bytes) {
  grpc::ResourceQuota quota;
  quota.Resize(static_cast<size_t>(bytes));
  builder.SetResourceQuota(quota);
}

void set_limits(grpc::ServerBuilder& builder, const Config& config) {
  constexpr int kMs = 1000;
  builder.SetMaxReceiveMessageSize(static_cast<int>(config.max_body_bytes));
  set_memory_limit(builder, incoming_message_bytes(config));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, config.max_header_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_connections);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, config.idle_timeout_s * kMs);
  // Pings notice a vanished peer; clients may ping that often too.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, config.ping_interval_s * kMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, config.write_timeout_s * kMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5 * kMs);
  // Compressed messages are refused, because inflating has no bound of its own: a few kilobytes
  // could become gigabytes.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // Silent connections are closed too.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, config.request_timeout_s * kMs);
  // The next process of a hot restart shares the port; is_port_free() keeps other servers off.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 1);
}

bool is_port_free(const std::string& host, int32_t port) {
  if (port == 0) return true;
  Config alone;
  alone.host = host;
  alone.port = port;
  return Listener::create(alone).has_value();
}

}  // namespace sluice
