// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/grpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <array>
#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "engine/core/log.h"
#include "server/front_end.h"
#include "server/grpc/rpc_context.h"
#include "server/grpc/sluice_service.h"
#include "server/grpc/vllm_service.h"
#include "server/http/listener.h"

namespace sluice {
namespace {

constexpr std::chrono::milliseconds kLastBytes{500};

// What it calls errors are mostly the failures of single clients, who could fill a log with them.
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

// Settings of the process, before its first server.
void set_up_library() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function(log_of_grpc);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

// The same settings as HTTP's TLS, which has refused files that are not good by the time that this
// looks at them. Files that change later are read again.
std::shared_ptr<grpc::ServerCredentials> make_credentials(const Config& config) {
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

void set_limits(grpc::ServerBuilder& builder, const Config& config) {
  constexpr int kMs = 1000;
  builder.SetMaxReceiveMessageSize(static_cast<int>(config.max_body_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, config.max_header_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_connections);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, config.idle_timeout_s * kMs);
  // A peer that has vanished is noticed; one that asks for that often is let.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, config.ping_interval_s * kMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, config.write_timeout_s * kMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5 * kMs);
  // Inflating has no bound of its own: a message of a few kilobytes could take gigabytes.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // Connections that say nothing are not kept either.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, config.request_timeout_s * kMs);
  // For the next process of a hot restart; is_free() keeps others off.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 1);
}

const std::string& host_of(const Config& config) {
  return config.grpc_host.empty() ? config.host : config.grpc_host;
}

// Whether a socket that shares its port with nobody can be bound there.
bool is_free(const Config& config) {
  if (config.grpc_port == 0) return true;
  Config alone;
  alone.host = host_of(config);
  alone.port = config.grpc_port;
  return Listener::create(alone).has_value();
}

std::string address_of(const Config& config) {
  const std::string& host = host_of(config);
  const bool is_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(config.grpc_port);
}

}  // namespace

struct GrpcServer::Impl {
  Impl(FrontEnd& front, std::vector<IoWorker*> workers) : rpc(front, std::move(workers)) {}

  RpcContext rpc;
  std::unique_ptr<grpc::Service> vllm = make_vllm_service(rpc);
  std::unique_ptr<grpc::Service> sluice = make_sluice_service(rpc);
  int port = 0;
  bool is_healthy = false;
  bool is_shut_down = false;
  std::unique_ptr<grpc::Server> server;  // last: goes before what its calls use
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() {
  if (impl_->server != nullptr) shutdown();
}

Expected<std::unique_ptr<GrpcServer>> GrpcServer::create(FrontEnd& front_end,
                                                         std::vector<IoWorker*> workers,
                                                         bool joins) {
  set_up_library();
  auto impl = std::make_unique<Impl>(front_end, std::move(workers));
  const Config& config = front_end.config;
  grpc::ServerBuilder builder;
  set_limits(builder, config);
  const std::string address = address_of(config);
  builder.AddListeningPort(address, make_credentials(config), &impl->port);
  builder.RegisterService(impl->vllm.get());
  builder.RegisterService(impl->sluice.get());
  if (joins || is_free(config)) impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return make_error(ErrorCode::kUnavailable,
                      "Cannot serve gRPC on " + address +
                          "; choose another address with --grpc-host and --grpc-port, or end the "
                          "owner of the port.",
                      "grpc-port");
  }
  auto server = std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
  server->refresh_health();
  return server;
}

uint16_t GrpcServer::port() const { return static_cast<uint16_t>(impl_->port); }

void GrpcServer::refresh_health() {
  const bool is_healthy = impl_->rpc.front_end.illness().empty();
  if (is_healthy == impl_->is_healthy) return;
  impl_->is_healthy = is_healthy;
  auto& health = *impl_->server->GetHealthCheckService();
  for (const std::string_view service : {std::string_view(), kVllmService, kSluiceService}) {
    health.SetServingStatus(std::string(service), is_healthy);
  }
}

void GrpcServer::shutdown() {
  if (std::exchange(impl_->is_shut_down, true)) return;
  impl_->server->Shutdown(std::chrono::system_clock::now() + kLastBytes);
  impl_->server->Wait();
}

}  // namespace sluice
