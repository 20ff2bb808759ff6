// SPDX-License-Identifier: Apache-2.0
// State shared by the gRPC services: authentication, the calls' threads, and their names
// for Abort.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "server/front/front_end.h"
#include "server/grpc/metadata_first.h"

namespace sluice {

class Generation;
class IoWorker;
class Tenant;

// The running generations with a client's name, by tenant and name; tenants do not see each
// other's. Any thread.
class NamedGenerations {
 public:
  using Name = std::pair<uint64_t, std::string>;

  // Returns false if the name is taken. `worker`: has the generation's thread.
  bool add(const Name& name, std::weak_ptr<Generation> generation, IoWorker& worker);
  void remove(const Name& name);
  // Ends the generation of that name, if there is one, on its thread.
  void abort(const Name& name);

 private:
  struct Place {
    std::weak_ptr<Generation> generation;
    IoWorker* worker;
  };

  std::mutex mutex_;
  std::map<Name, Place> places_;
};

// Returns "" without such metadata.
std::string metadata_value(const grpc::CallbackServerContext& context, const char* key);

// Returns the host:port in gRPC's name of a peer, such as ipv6:%5B::1%5D:1234.
std::string address_of(std::string_view peer);

void echo_request_id(grpc::CallbackServerContext& context);

// Returns the client's name for its request, from x-request-id; "" without one.
std::string request_id_of(const grpc::CallbackServerContext& context);

// Returns the client's traceparent and tracestate.
TraceContext trace_context_of(const grpc::CallbackServerContext& context);

// Returns the status that reports `error`.
grpc::Status to_status(const Error& error);

// Adds what a client gets of `error` beside its status: the field, and when to try again.
void add_trailers(const Error& error, grpc::CallbackServerContext& context);

class CountedPort;

class RpcContext {
 public:
  // `workers`: outlive the calls; the last one is that of large messages.
  RpcContext(FrontEnd& shared_front_end, std::vector<IoWorker*> workers);

  // Returns the tenant of the call's key, or kUnauthenticated, and echoes its x-request-id. gRPC's
  // threads.
  [[nodiscard]] Expected<std::shared_ptr<Tenant>> admit(grpc::CallbackServerContext& context) const;
  // Counts a call that generates, to be uncounted by its end; RESOURCE_EXHAUSTED: there are too
  // many.
  template <typename Call>
  [[nodiscard]] tl::expected<std::shared_ptr<Call>, grpc::Status> begin_call(
      size_t method, std::shared_ptr<Call> call) const {
    if (front_end.connection_opened()) return call;
    return tl::unexpected(too_many_calls(method));
  }

  [[nodiscard]] grpc::Status too_many_calls(size_t method) const;

  // Returns the thread for a message, so that parsing a large one delays no other. Any thread.
  IoWorker& worker_of(size_t message_bytes);

  // Returns and counts the status that refuses a call.
  grpc::Status refusal(size_t method, const Error& error) const {
    return count(method, to_status(error));
  }

  grpc::Status count(size_t method, const grpc::Status& status) const {
    front_end.grpc_counters.count(method, status.error_code());
    return status;
  }

  // Refuses a call by its metadata.
  template <typename Response>
  OneRequestWire<Response>* refuse(size_t method, const Error& error) const {
    return new UnreadReactor<Response>(refusal(method, error));
  }

  // Answers a call without arguments, from any caller.
  template <typename Response>
  OneRequestWire<Response>* respond(grpc::CallbackServerContext& context,
                                 size_t method,
                                 Response response) const {
    echo_request_id(context);
    count(method, grpc::Status::OK);
    return new UnreadReactor<Response>(std::move(response));
  }

  // Answers a call by `fill`: a status for a tenant, a Request and a Response.
  template <typename Request, typename Response, typename Fill>
  OneRequestWire<Response>* answer(grpc::CallbackServerContext& context,
                                   size_t method,
                                   Fill fill) const {
    auto tenant = admit(context);
    if (!tenant) return refuse<Response>(method, tenant.error());
    return new AnswerReactor<Request, Response>(
        [this, method, fill, tenant = *tenant](const Request& request, auto& reactor) {
          reactor.finish(count(method, fill(*tenant, request, reactor.response())));
        });
  }

  FrontEnd& front_end;
  NamedGenerations named;
  CountedPort* port = nullptr;  // the port of the calls; outlives them

 private:
  const std::vector<IoWorker*> workers_;
  std::atomic<size_t> next_worker_{0};
};

}  // namespace sluice
