// SPDX-License-Identifier: Apache-2.0
// Attributes of a generation's span, under the names of OpenTelemetry's GenAI conventions, and
// under vLLM's if those have none (gen_ai.latency.*).
#pragma once

#include <string>
#include <vector>

#include "server/api/request_validator.h"
#include "server/front/usage.h"
#include "server/traces/request_span.h"

namespace sluice {

void describe_request(const GenerationRequest& request, RequestSpan& span);

// `reasons`: one for each choice, in order.
void describe_end(const Usage& usage, std::vector<std::string> reasons, RequestSpan& span);

}  // namespace sluice
