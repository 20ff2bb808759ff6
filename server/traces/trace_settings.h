// SPDX-License-Identifier: Apache-2.0
// The destination of spans and which requests have them: --otlp-traces-endpoint, and the
// environment that OpenTelemetry's specification names (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
// OTEL_EXPORTER_OTLP_ENDPOINT, ..._HEADERS, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG, OTEL_TRACES_EXPORTER=none, OTEL_SDK_DISABLED).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/status.h"

namespace sluice {

struct TraceSettings {
  std::string url;  // of OTLP over HTTP, as JSON; the path included
  std::vector<std::pair<std::string, std::string>> headers;              // of each request to it
  std::vector<std::pair<std::string, std::string>> resource_attributes;  // service.name among them
  bool follows_parent = true;  // a request of a sampled trace is sampled, of an unsampled one not
  double ratio = 1;            // of the others, 0 to 1
};

using Environment = std::function<const char*(const char* name)>;  // std::getenv

// None: nothing asks for spans. kInvalidArgument names the variable or knob and its value.
Expected<std::optional<TraceSettings>> trace_settings(const Config& config,
                                                      const Environment& environment);

}  // namespace sluice
