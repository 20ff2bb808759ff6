// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/rpc_context.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/api/generation.h"
#include "server/front/io_worker.h"
#include "server/grpc/counted_port.h"
#include "server/http/api_errors.h"
#include "server/http/connection.h"
#include "server/http/request_id.h"

namespace sluice {
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

void echo_request_id(grpc::CallbackServerContext& context) {
  const std::string id = request_id_of(context);
  if (!id.empty()) context.AddInitialMetadata("x-request-id", id);
}

std::string request_id_of(const grpc::CallbackServerContext& context) {
  return safe_request_id(metadata_value(context, "x-request-id"));
}

TraceContext trace_context_of(const grpc::CallbackServerContext& context) {
  return parse_trace_context(metadata_value(context, "traceparent"),
                             metadata_value(context, "tracestate"));
}

bool NamedGenerations::add(const Name& name,
                           std::weak_ptr<Generation> generation,
                           IoWorker& worker) {
  const std::scoped_lock lock(mutex_);
  return places_.emplace(name, Place{std::move(generation), &worker}).second;
}

void NamedGenerations::remove(const Name& name) {
  const std::scoped_lock lock(mutex_);
  places_.erase(name);
}

void NamedGenerations::abort(const Name& name) {
  const std::scoped_lock lock(mutex_);
  const auto found = places_.find(name);
  if (found == places_.end()) return;
  found->second.worker->post([weak = found->second.generation] {
    if (const auto generation = weak.lock()) generation->abort();
  });
}

RpcContext::RpcContext(FrontEnd& shared_front_end, std::vector<IoWorker*> workers)
    : front_end(shared_front_end), workers_(std::move(workers)) {}

Expected<std::shared_ptr<Tenant>> RpcContext::admit(grpc::CallbackServerContext& context) const {
  echo_request_id(context);
  HttpRequest credentials;
  credentials.authorization = metadata_value(context, "authorization");
  credentials.api_key = metadata_value(context, "x-api-key");
  auto tenant = front_end.authenticator.find_tenant(credentials);
  if (tenant == nullptr) return make_error(ErrorCode::kUnauthenticated, "Invalid API key.");
  if (port != nullptr) port->mark_authenticated(address_of(context.peer()));
  return tenant;
}

grpc::Status RpcContext::too_many_calls(size_t method) const {
  return refusal(method,
                 Error{ErrorCode::kResourceExhausted,
                       "There are more open connections and calls than --max-connections.",
                       {},
                       {}});
}

IoWorker& RpcContext::worker_of(size_t message_bytes) {
  if (message_bytes > kLargeBody) return *workers_.back();
  return *workers_[next_worker_.fetch_add(1) % (workers_.size() - 1)];
}

grpc::Status to_status(const Error& error) {
  return {static_cast<grpc::StatusCode>(grpc_status(error.code)), error.message};
}

void add_trailers(const Error& error, grpc::CallbackServerContext& context) {
  // gRPC ends the process over a value that is not printable.
  const bool is_printable =
      std::ranges::all_of(error.param, [](char c) { return c >= ' ' && c <= '~'; });
  if (!error.param.empty() && is_printable) {
    context.AddTrailingMetadata("x-sluice-param", error.param);
  }
  if (const int seconds = retry_after_s(error); seconds > 0) {
    // The delay that gRPC's own retry policy reads.
    context.AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(1000 * seconds));
  }
}

}  // namespace sluice
