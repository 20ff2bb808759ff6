// SPDX-License-Identifier: Apache-2.0
// The handlers of /v1/chat/completions and /v1/completions: a request is validated, admitted to its
// key's limits, and handed to a Generation, which answers through an HttpAnswer. Called on the I/O
// thread of the connection.
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "server/api/generation.h"
#include "server/api/http_answer.h"
#include "server/front_end.h"

namespace sluice {
namespace {

// Validates, then runs a Generation.
void start_generation(FrontEnd& front_end, Exchange exchange, Endpoint endpoint) {
  if (front_end.is_draining()) {
    return front_end.fail(exchange,
                          Error{ErrorCode::kUnavailable, "The server is draining.", {}, {}});
  }
  const ValidationContext context =
      front_end.validation_context(exchange.tenant_salt, exchange.arrival);
  auto request = validate_generation(context, exchange.request.body, endpoint, exchange.ignored);
  front_end.note_ignored(exchange.ignored);
  if (!request) return front_end.fail(exchange, request.error());
  std::string().swap(exchange.request.body);
  const int64_t prompt_tokens = num_prompt_tokens(*request);
  exchange.usage.emplace().prompt_tokens = prompt_tokens;
  const auto admitted = exchange.tenant->admit(prompt_tokens, std::chrono::steady_clock::now());
  if (!admitted) return front_end.fail(exchange, admitted.error());
  lease_to(*request, exchange.tenant);
  auto answer =
      std::make_shared<HttpAnswer>(front_end, std::move(exchange), endpoint, request->model);
  std::make_shared<Generation>(front_end, std::move(answer), std::move(*request))->start();
}

}  // namespace

void handle_chat_completions(FrontEnd& front_end, Exchange exchange) {
  start_generation(front_end, std::move(exchange), Endpoint::kChat);
}

void handle_completions(FrontEnd& front_end, Exchange exchange) {
  start_generation(front_end, std::move(exchange), Endpoint::kCompletion);
}

}  // namespace sluice
