// SPDX-License-Identifier: Apache-2.0
#include "server/front/usage.h"

#include "engine/core/log.h"
#include "server/json/json_writer.h"

namespace sluice {

void write_timings(JsonWriter& json, const RequestTimings& timings) {
  json.open_object().key("queued_ms").decimal(timings.queued_ms);
  json.key("prefill_ms").decimal(timings.prefill_ms);
  json.key("decode_ms").decimal(timings.decode_ms);
  json.key("preemptions").integer(timings.num_preemptions).close_object();
}

void log_usage(const Usage& usage, LogLine& line) {
  line.add("prompt_tokens", usage.prompt_tokens).add("output_tokens", usage.completion_tokens);
  line.add("cached_tokens", usage.cached_tokens);
  if (usage.reasoning_tokens > 0) line.add("reasoning_tokens", usage.reasoning_tokens);
  line.add("queued_ms", usage.timings.queued_ms).add("prefill_ms", usage.timings.prefill_ms);
  line.add("decode_ms", usage.timings.decode_ms);
  line.add("preemptions", usage.timings.num_preemptions);
}

}  // namespace sluice
