// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/grpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/core/log.h"
#include "server/front/front_end.h"
#include "server/grpc/counted_port.h"
#include "server/grpc/health_service.h"
#include "server/grpc/reflection_service.h"
#include "server/grpc/rpc_context.h"
#include "server/grpc/server_settings.h"
#include "server/grpc/sluice_service.h"
#include "server/grpc/vllm_service.h"
#include "server/http/socket_name.h"

namespace sluice {
namespace {

constexpr std::chrono::milliseconds kLastBytes{500};

SocketName name_of(const Config& config) {
  std::string host = config.grpc_host.empty() ? config.host : config.grpc_host;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {std::move(host), config.grpc_port};
}

}  // namespace

struct GrpcServer::Impl {
  Impl(FrontEnd& front, std::vector<IoWorker*> workers) : rpc(front, std::move(workers)) {}

  RpcContext rpc;
  std::unique_ptr<grpc::Service> vllm = make_vllm_service(rpc);
  std::unique_ptr<grpc::Service> sluice = make_sluice_service(rpc);
  HealthService health{rpc};
  ReflectionService reflection{rpc};
  std::unique_ptr<CountedPort> port;
  std::mutex mutex;  // guards the next two
  bool is_shut_down = false;
  std::thread leaver;  // waits for the last call
  std::promise<void> no_call_left;
  std::unique_ptr<grpc::Server> server;  // last: destroyed before the objects that its calls use
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() {
  if (impl_->server != nullptr) shutdown();
}

Expected<std::unique_ptr<GrpcServer>> GrpcServer::create(FrontEnd& front_end,
                                                         std::vector<IoWorker*> workers,
                                                         bool joins) {
  set_up_grpc();
  auto impl = std::make_unique<Impl>(front_end, std::move(workers));
  const Config& config = front_end.config;
  const SocketName name = name_of(config);
  grpc::ServerBuilder builder;
  set_limits(builder, config);
  if (auto port = CountedPort::create(name, joins, slots_of(front_end))) {
    impl->port = std::move(*port);
    impl->rpc.port = impl->port.get();
    impl->port->add_to(builder, server_credentials(config));
    builder.RegisterService(impl->vllm.get());
    builder.RegisterService(impl->sluice.get());
    builder.RegisterService(&impl->health);
    builder.RegisterService(&impl->reflection);
    impl->server = builder.BuildAndStart();
  }
  if (impl->server == nullptr) {
    return make_error(ErrorCode::kUnavailable,
                      "Cannot serve gRPC on " + text_of(name) +
                          "; choose another address with --grpc-host and --grpc-port, or end the "
                          "owner of the port.",
                      "grpc-port");
  }
  impl->port->start();
  auto server = std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
  server->refresh_health();
  return server;
}

uint16_t GrpcServer::port() const { return impl_->port->port(); }

void GrpcServer::refresh_health() {
  const bool is_healthy = impl_->rpc.front_end.illness().empty();
  if (is_healthy != impl_->health.is_serving()) impl_->health.set_serving(is_healthy);
}

void GrpcServer::leave() {
  const std::scoped_lock lock(impl_->mutex);
  if (impl_->is_shut_down || impl_->leaver.joinable()) return;
  try {
    impl_->leaver = std::thread([impl = impl_.get()] {
      impl->port->stop();
      impl->server->Shutdown();
      impl->no_call_left.set_value();
    });
  } catch (const std::system_error& error) {
    log_event(LogLevel::kError, "grpc_not_left", "reason", error.what());
  }
}

void GrpcServer::shutdown() {
  {
    const std::scoped_lock lock(impl_->mutex);
    if (std::exchange(impl_->is_shut_down, true)) return;
  }
  const bool has_left = impl_->leaver.joinable();
  if (!has_left) impl_->port->stop();
  impl_->health.end_watches();
  if (has_left) {
    const std::future<void> ended = impl_->no_call_left.get_future();
    while (ended.wait_for(kLastBytes) == std::future_status::timeout) {
      grpc_server_cancel_all_calls(impl_->server->c_server());
    }
    impl_->leaver.join();
  } else {
    impl_->server->Shutdown(std::chrono::system_clock::now() + kLastBytes);
  }
  impl_->server->Wait();
}

}  // namespace sluice
