// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/rpc_context.h"

#include <functional>
#include <string_view>
#include <utility>

#include "server/grpc/counted_port.h"
#include "server/http/api_errors.h"
#include "server/http/request_id.h"

namespace sluice {
namespace {

void echo_request_id(grpc::CallbackServerContext& context) {
  const std::string id = request_id_of(context);
  if (!id.empty()) context.AddInitialMetadata("x-request-id", id);
}

}  // namespace

std::string metadata_value(const grpc::CallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return {};
  return std::string(found->second.data(), found->second.size());
}

std::string address_of(std::string_view peer) {
  for (const std::string_view family : {"ipv4:", "ipv6:"}) {
    if (peer.starts_with(family)) peer.remove_prefix(family.size());
  }
  std::string address(peer);
  for (const auto& [escape, bracket] : {std::pair("%5B", '['), std::pair("%5D", ']')}) {
    const size_t at = address.find(escape);
    if (at != std::string::npos) address.replace(at, 3, 1, bracket);
  }
  return address;
}

std::string request_id_of(const grpc::CallbackServerContext& context) {
  return safe_request_id(metadata_value(context, "x-request-id"));
}

TraceContext trace_context_of(const grpc::CallbackServerContext& context) {
  return parse_trace_context(metadata_value(context, "traceparent"),
                             metadata_value(context, "tracestate"));
}

RpcContext::RpcContext(FrontEnd& shared_front_end, std::vector<IoWorker*> io_workers)
    : front_end(shared_front_end), workers(std::move(io_workers)), named(workers.size()) {}

Expected<std::shared_ptr<Tenant>> RpcContext::authenticate(
    const grpc::CallbackServerContext& context) const {
  HttpRequest credentials;
  credentials.authorization = metadata_value(context, "authorization");
  credentials.api_key = metadata_value(context, "x-api-key");
  auto tenant = front_end.authenticator.find_tenant(credentials);
  if (tenant == nullptr) return make_error(ErrorCode::kUnauthenticated, "Invalid API key.");
  if (port != nullptr) port->prove(address_of(context.peer()));
  return tenant;
}

Expected<std::shared_ptr<Tenant>> RpcContext::admit(grpc::CallbackServerContext& context) {
  echo_request_id(context);
  SLUICE_TRY(auto tenant, authenticate(context));
  if (!front_end.connection_opened()) {
    return make_error(ErrorCode::kResourceExhausted,
                      "There are more open connections and calls than --max-connections.");
  }
  return tenant;
}

size_t RpcContext::worker_idx(const std::string& name) {
  const size_t number =
      name.empty() ? next_worker_.fetch_add(1) : std::hash<std::string_view>{}(name);
  return number % workers.size();
}

grpc::ServerUnaryReactor* RpcContext::finish(grpc::CallbackServerContext& context,
                                             size_t method,
                                             const grpc::Status& status) {
  echo_request_id(context);
  front_end.grpc_counters.count(method, status.error_code());
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

grpc::ServerUnaryReactor* RpcContext::finish(grpc::CallbackServerContext& context,
                                             size_t method,
                                             const Error& error) {
  return finish(context, method, to_status(error));
}

grpc::Status to_status(const Error& error) {
  return {static_cast<grpc::StatusCode>(grpc_status(error.code)), error.message};
}

}  // namespace sluice
