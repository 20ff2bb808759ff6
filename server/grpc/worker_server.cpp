// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/worker_server.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "server/front/front_end.h"
#include "server/grpc/counted_port.h"
#include "server/grpc/server_settings.h"
#include "server/grpc/worker_secret.h"
#include "server/grpc/worker_service.h"
#include "server/http/socket_name.h"

namespace sluice {
namespace {

constexpr std::chrono::milliseconds kLastAnswers{500};
constexpr int kMostRequestBytes = 64 << 20;  // a prompt that fills the context, and its grammar

tl::unexpected<Error> invalid(const std::string& message) {
  return make_error(ErrorCode::kInvalidArgument, "--worker-listen: " + message, "worker-listen");
}

Expected<void> check_exposure(const SocketName& name, const Config& config) {
  SLUICE_TRY_VOID(check_worker_secret(config));
  if (is_loopback(name.host) || !config.worker_secret.empty()) return {};
  constexpr int kRequired = 2;
  if (!config.ssl_certfile.empty() && config.ssl_cert_reqs == kRequired) return {};
  return invalid(name.host +
                 " is no loopback address; set --worker-secret, or require client certificates "
                 "with --ssl-certfile, --ssl-ca-certs and --ssl-cert-reqs 2.");
}

}  // namespace

struct WorkerServer::Impl {
  explicit Impl(FrontEnd& front_end) : service(front_end) {}

  WorkerService service;
  std::unique_ptr<CountedPort> port;
  bool is_shut_down = false;
  std::unique_ptr<grpc::Server> server;  // last: destroyed before the objects that its calls use
};

WorkerServer::WorkerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

WorkerServer::~WorkerServer() {
  if (impl_->server != nullptr) shutdown();
}

Expected<std::unique_ptr<WorkerServer>> WorkerServer::create(FrontEnd& front_end, bool joins) {
  const Config& config = front_end.config;
  const auto name = parse_socket_name(config.worker_listen);
  if (!name) return invalid("must be host:port, got \"" + config.worker_listen + "\".");
  SLUICE_TRY_VOID(check_exposure(*name, config));
  set_up_grpc();
  auto impl = std::make_unique<Impl>(front_end);
  grpc::ServerBuilder builder;
  set_limits(builder, config);
  builder.SetMaxReceiveMessageSize(
      std::max(kMostRequestBytes, static_cast<int>(config.max_body_bytes)));
  if (auto port = CountedPort::create(*name, joins, slots_of(front_end))) {
    impl->port = std::move(*port);
    impl->service.set_port(impl->port.get());
    impl->port->add_to(builder, server_credentials(config));
    builder.RegisterService(&impl->service);
    impl->server = builder.BuildAndStart();
  }
  if (impl->server == nullptr) {
    return make_error(ErrorCode::kUnavailable,
                      "--worker-listen: cannot listen on " + config.worker_listen +
                          "; choose another address, or end the owner of the port.",
                      "worker-listen");
  }
  impl->port->start();
  return std::unique_ptr<WorkerServer>(new WorkerServer(std::move(impl)));
}

uint16_t WorkerServer::port() const { return impl_->port->port(); }

void WorkerServer::cut_calls() { impl_->service.cut_calls(); }

void WorkerServer::shutdown() {
  if (std::exchange(impl_->is_shut_down, true)) return;
  impl_->port->stop();
  impl_->server->Shutdown(std::chrono::system_clock::now() + kLastAnswers);
  impl_->server->Wait();
}

int64_t WorkerServer::num_watched() const { return impl_->service.num_watched(); }

}  // namespace sluice
