// SPDX-License-Identifier: Apache-2.0
#include "server/traces/request_span.h"

namespace sluice {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr double kNsPerSecond = 1e9;
constexpr double kMsPerSecond = 1e3;

}  // namespace

RequestSpan::RequestSpan(Tracer& tracer,
                         const TraceContext& parent,
                         SteadyClock::time_point arrival)
    : tracer_(tracer) {
  span_.context = tracer.begin(parent);
  // Without a tracer that records, the context is the client's own and has nothing to record.
  is_open_ = tracer.is_recording();
  if (!is_recorded()) return;
  if (parent.is_set()) span_.parent = parent.span_id;
  span_.start_ns = unix_ns(arrival);
}

void RequestSpan::add(std::string key, SpanValue value) {
  if (is_recorded()) span_.attributes.emplace_back(std::move(key), std::move(value));
}

void RequestSpan::note_token() {
  if (!is_recorded() || !span_.events.empty()) return;
  const int64_t now = unix_ns(SteadyClock::now());
  span_.events.push_back({"gen_ai.first_token", now});
  add("gen_ai.latency.time_to_first_token",
      static_cast<double>(now - span_.start_ns) / kNsPerSecond);
}

void RequestSpan::add_sampling(const SamplingParams& sampling) {
  add("gen_ai.request.max_tokens", int64_t{sampling.max_tokens});
  add("gen_ai.request.temperature", double{sampling.temperature});
  add("gen_ai.request.top_p", double{sampling.top_p});
  add("gen_ai.request.top_k", double(sampling.top_k));
  add("gen_ai.request.frequency_penalty", double{sampling.frequency_penalty});
  add("gen_ai.request.presence_penalty", double{sampling.presence_penalty});
  add("gen_ai.request.seed", static_cast<int64_t>(sampling.seed));
}

void RequestSpan::add_timings(const RequestTimings& timings) {
  add("gen_ai.latency.time_in_queue", timings.queued_ms / kMsPerSecond);
  add("gen_ai.latency.time_in_model_prefill", timings.prefill_ms / kMsPerSecond);
  add("gen_ai.latency.time_in_model_decode", timings.decode_ms / kMsPerSecond);
  if (timings.num_preemptions > 0) {
    add("sluice.num_preemptions", int64_t{timings.num_preemptions});
  }
}

void RequestSpan::set_error(const Error& error) {
  if (!is_recorded()) return;
  span_.is_error = true;
  span_.error = error.message;
  add("error.type", std::string(to_string(error.code)));
}

void RequestSpan::end() {
  if (!is_recorded()) return;
  span_.end_ns = unix_ns(SteadyClock::now());
  add("gen_ai.latency.e2e", static_cast<double>(span_.end_ns - span_.start_ns) / kNsPerSecond);
  is_open_ = false;
  tracer_.add(std::move(span_));
}

}  // namespace sluice
