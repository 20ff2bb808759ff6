// SPDX-License-Identifier: Apache-2.0
// The span of one request while it runs: from its arrival to end(), which hands it to the Tracer.
// One thread at a time. Where the request is not sampled everything here does nothing.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "engine/core/status.h"
#include "engine/request.h"
#include "server/traces/span.h"
#include "server/traces/tracer.h"

namespace sluice {

class RequestSpan {
 public:
  RequestSpan(Tracer& tracer,
              const TraceContext& parent,
              std::chrono::steady_clock::time_point arrival);

  // What is done for the request elsewhere belongs below this.
  [[nodiscard]] const TraceContext& context() const { return span_.context; }

  [[nodiscard]] bool is_recorded() const { return span_.context.is_sampled && is_open_; }

  void set_name(std::string name) { span_.name = std::move(name); }

  void add(std::string key, SpanValue value);

  // At each token; the first one counts.
  void note_token();
  void add_sampling(const SamplingParams& sampling);
  void add_timings(const RequestTimings& timings);
  void set_error(const Error& error);

  // Later calls do nothing.
  void end();

 private:
  Tracer& tracer_;
  Span span_;
  bool is_open_ = true;
};

}  // namespace sluice
