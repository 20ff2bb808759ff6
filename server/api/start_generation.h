// SPDX-License-Identifier: Apache-2.0
// What the handlers of all generating endpoints do: a request is validated, admitted to its key's
// limits, and handed to a Generation, which answers through an HttpAnswer. I/O thread of the
// connection.
#pragma once

#include <functional>
#include <memory>

#include "server/api/answer_format.h"
#include "server/api/request_validator.h"
#include "server/front_end.h"

namespace sluice {

// What one API makes of a request's body: the request, and how it is answered.
struct DecodedRequest {
  GenerationRequest request;
  std::unique_ptr<AnswerFormat> format;
};

// Runs at once, with the exchange's body; names that are left out go to `exchange.ignored`.
using RequestDecoder =
    std::function<Expected<DecodedRequest>(const ValidationContext& context, Exchange& exchange)>;

void start_generation(FrontEnd& front_end, Exchange exchange, const RequestDecoder& decode);

}  // namespace sluice
