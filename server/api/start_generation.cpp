// SPDX-License-Identifier: Apache-2.0
#include "server/api/start_generation.h"

#include <chrono>
#include <string>
#include <utility>

#include "server/api/generation.h"
#include "server/api/http_answer.h"
#include "server/api/left_out.h"
#include "server/keys/tenant.h"

namespace sluice {

namespace {

constexpr int kMostVersions = 3;  // that one request is tried with

// `num_tries`: with how many versions more the request may be tried if this one has gone. `lease`:
// what a request that moves has of its key's limits; null: it is new.
void start(FrontEnd& front_end,
           Exchange exchange,
           const RequestDecoder& decode,
           int num_tries,
           std::shared_ptr<TenantLease> lease) {
  if (front_end.is_draining()) {
    return front_end.refuse(exchange,
                            Error{ErrorCode::kUnavailable, "The server is draining.", {}, {}});
  }
  auto decoded = front_end.read_request(
      exchange.tenant_salt,
      exchange.arrival,
      exchange.request.body.size(),
      [&](const ValidationContext& context) {
        return decode(context, exchange);
      });
  if (decoded) note_left_out(decoded->request, exchange.ignored);
  front_end.note_ignored(exchange.ignored);
  if (!decoded) return front_end.refuse(exchange, decoded.error());
  GenerationRequest& request = decoded->request;
  request.trace = exchange.request.trace;
  exchange.model = request.model;
  exchange.is_stream = request.stream;
  const bool may_move = num_tries > 0 && front_end.has_versions();
  if (!may_move) std::string().swap(exchange.request.body);
  const int64_t prompt_tokens = num_prompt_tokens(request);
  exchange.usage.emplace().prompt_tokens = prompt_tokens;
  if (lease == nullptr) {
    const auto admitted = exchange.tenant->admit(prompt_tokens, std::chrono::steady_clock::now());
    if (!admitted) return front_end.refuse(exchange, admitted.error());
    lease = std::make_shared<TenantLease>(exchange.tenant);
  }
  charge_to(request, lease);
  auto answer =
      std::make_shared<HttpAnswer>(front_end, std::move(exchange), std::move(decoded->format));
  if (may_move) {
    answer->let_move([&front_end, decode, num_tries, lease = std::move(lease)](Exchange moved) {
      moved.ignored = IgnoredArguments(unknown_arguments_rule(front_end.config));
      start(front_end, std::move(moved), decode, num_tries - 1, lease);
    });
  }
  std::make_shared<Generation>(front_end, std::move(answer), std::move(request))->start();
}

}  // namespace

void start_generation(FrontEnd& front_end, Exchange exchange, const RequestDecoder& decode) {
  start(front_end, std::move(exchange), decode, kMostVersions - 1, nullptr);
}

}  // namespace sluice
