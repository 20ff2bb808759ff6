// SPDX-License-Identifier: Apache-2.0
// State shared by the gRPC services: authentication, the calls' threads, and their names for Abort.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "server/front/front_end.h"

namespace sluice {

class Generation;
class IoWorker;
class Tenant;

// The running generations with a client's name, by tenant and name; one map for each I/O thread,
// used on it only. Tenants do not see each other's.
using NamedGenerations = std::map<std::pair<uint64_t, std::string>, std::weak_ptr<Generation>>;

// Returns "" without such metadata.
std::string metadata_value(const grpc::CallbackServerContext& context, const char* key);

// Returns the host:port in gRPC's name of a peer, such as ipv6:%5B::1%5D:1234.
std::string address_of(std::string_view peer);

// Returns the client's name for its request, from x-request-id; "" without one.
std::string request_id_of(const grpc::CallbackServerContext& context);

// Returns the client's traceparent and tracestate.
TraceContext trace_context_of(const grpc::CallbackServerContext& context);

// Returns the status that reports `error`.
grpc::Status to_status(const Error& error);

class CountedPort;

class RpcContext {
 public:
  RpcContext(FrontEnd& shared_front_end, std::vector<IoWorker*> workers);

  // Returns the tenant of the call's key, or kUnauthenticated. gRPC's threads.
  [[nodiscard]] Expected<std::shared_ptr<Tenant>> authenticate(
      const grpc::CallbackServerContext& context) const;
  // Authenticates a call that generates: also counts it, to be uncounted by its end, and echoes its
  // x-request-id, like finish().
  [[nodiscard]] Expected<std::shared_ptr<Tenant>> admit(grpc::CallbackServerContext& context);

  // Returns the same thread for requests of one name; any thread for "".
  [[nodiscard]] size_t worker_idx(const std::string& name);

  // Ends a call that was not admitted.
  template <typename Reactor>
  void refuse(Reactor& reactor, size_t method, const Error& error) {
    const grpc::Status status = to_status(error);
    front_end.grpc_counters.count(method, status.error_code());
    reactor.finish(status);
  }

  // Answers a unary call at once.
  grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext& context,
                                   size_t method,
                                   const grpc::Status& status);
  grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext& context,
                                   size_t method,
                                   const Error& error);

  FrontEnd& front_end;
  const std::vector<IoWorker*> workers;  // outlive the calls
  std::vector<NamedGenerations> named;   // one for each worker, used on its thread
  CountedPort* port = nullptr;           // where the calls come from; outlives them

 private:
  std::atomic<size_t> next_worker_{0};
};

}  // namespace sluice
