// SPDX-License-Identifier: Apache-2.0
#include "server/api/generation_span.h"

#include <utility>

#include "server/front/served_model.h"

namespace sluice {

void describe_request(const GenerationRequest& request, RequestSpan& span) {
  if (!span.is_recorded()) return;
  const std::string operation =
      request.endpoint == Endpoint::kCompletion ? "text_completion" : "chat";
  span.set_name(operation + " " + request.model);
  span.add("gen_ai.operation.name", operation);
  span.add("gen_ai.provider.name", std::string("sluice"));
  span.add("gen_ai.request.model", request.model);
  span.add("gen_ai.response.model", request.served->names.front());
  span.add_sampling(request.requests.front().sampling);
  if (!request.stop.strings.empty()) {
    span.add("gen_ai.request.stop_sequences", request.stop.strings);
  }
  if (request.num_returned > 1) {
    span.add("gen_ai.request.choice.count", int64_t{request.num_returned});
  }
}

void describe_end(const Usage& usage, std::vector<std::string> reasons, RequestSpan& span) {
  span.add("gen_ai.response.finish_reasons", std::move(reasons));
  span.add("gen_ai.usage.input_tokens", usage.prompt_tokens);
  span.add("gen_ai.usage.output_tokens", usage.completion_tokens);
  span.add("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens);
  span.add_timings(usage.timings);
}

}  // namespace sluice
