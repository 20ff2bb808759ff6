// SPDX-License-Identifier: Apache-2.0
// The handler of /v1/completions. Called on the I/O thread of the connection.
#include <memory>
#include <utility>

#include "server/api/completions_format.h"
#include "server/api/start_generation.h"

namespace sluice {

void handle_completions(FrontEnd& front_end, Exchange exchange) {
  start_generation(
      front_end,
      std::move(exchange),
      [&](const ValidationContext& context, Exchange& asked) -> Expected<DecodedRequest> {
        SLUICE_TRY(
            auto request,
            validate_generation(context, asked.request.body, Endpoint::kCompletion, asked.ignored));
        auto format = std::make_unique<CompletionsFormat>(front_end, request.model);
        return DecodedRequest{std::move(request), std::move(format)};
      });
}

}  // namespace sluice
