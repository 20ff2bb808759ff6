// SPDX-License-Identifier: Apache-2.0
// The common path of the handlers of all generating endpoints: a request is validated, admitted to
// its key's limits, and handed to a Generation, which answers through an HttpAnswer. I/O thread of
// the connection.
#pragma once

#include <functional>
#include <memory>

#include "server/api/answer_format.h"
#include "server/api/request_validator.h"
#include "server/front/front_end.h"

namespace sluice {

// One API's reading of a request's body: the request, and the format of its answer.
struct DecodedRequest {
  GenerationRequest request;
  std::unique_ptr<AnswerFormat> format;
};

// Runs at once, on the exchange's body; names that are left out go to `exchange.ignored`. Runs
// again where a router has no worker any more of the version that the request was read for and
// nothing of the answer is sent: what it captures must live as long as the front end.
using RequestDecoder =
    std::function<Expected<DecodedRequest>(const ValidationContext& context, Exchange& exchange)>;

void start_generation(FrontEnd& front_end, Exchange exchange, const RequestDecoder& decode);

}  // namespace sluice
