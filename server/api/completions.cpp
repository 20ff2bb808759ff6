// SPDX-License-Identifier: Apache-2.0
// The handlers of /v1/completions and /v1/chat/completions. Called on the I/O thread of the
// connection.
#include <memory>
#include <utility>

#include "server/api/chat_format.h"
#include "server/api/completions_format.h"
#include "server/api/start_generation.h"

namespace sluice {
namespace {

template <typename Format>
void handle(FrontEnd& front_end, Exchange exchange, Endpoint endpoint) {
  start_generation(
      front_end,
      std::move(exchange),
      [endpoint](const ValidationContext& context, Exchange& asked) -> Expected<DecodedRequest> {
        SLUICE_TRY(auto request,
                   validate_generation(context, asked.request.body, endpoint, asked.ignored));
        auto format = std::make_unique<Format>(request.served, request.model);
        return DecodedRequest{std::move(request), std::move(format)};
      });
}

}  // namespace

void handle_completions(FrontEnd& front_end, Exchange exchange) {
  handle<CompletionsFormat>(front_end, std::move(exchange), Endpoint::kCompletion);
}

void handle_chat_completions(FrontEnd& front_end, Exchange exchange) {
  handle<ChatFormat>(front_end, std::move(exchange), Endpoint::kChat);
}

}  // namespace sluice
