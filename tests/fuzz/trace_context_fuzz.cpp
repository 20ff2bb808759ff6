// SPDX-License-Identifier: Apache-2.0
// Headers and variables of traces, of one line each: a traceparent that is taken comes back as it
// was, whatever else is there; settings that are taken are in range and break no header. The first
// line is an Accept header as well, which says how much a type is wanted and nothing else.
#include <array>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/core/trace_context.h"
#include "server/http/accept.h"
#include "server/traces/trace_settings.h"
#include "tests/fuzz/target.h"

using namespace sluice;

namespace {

constexpr std::array<std::string_view, 6> kVariables = {"OTEL_EXPORTER_OTLP_ENDPOINT",
                                                        "OTEL_EXPORTER_OTLP_HEADERS",
                                                        "OTEL_RESOURCE_ATTRIBUTES",
                                                        "OTEL_SERVICE_NAME",
                                                        "OTEL_TRACES_SAMPLER",
                                                        "OTEL_TRACES_SAMPLER_ARG"};

void check_context(const std::string& parent, const std::string& state) {
  const TraceContext context = parse_trace_context(parent, state);
  if (!context.is_set()) return;
  const TraceContext again = parse_trace_context(traceparent(context), context.state);
  CHECK(again.trace_id == context.trace_id && again.span_id == context.span_id);
  CHECK(again.is_sampled == context.is_sampled && again.state == context.state);
  CHECK(traceparent(context).substr(2, 50) == parent.substr(2, 50));
  CHECK(context.state.empty() || context.state == state);
}

// What is named twice counts once, by its larger weight.
void check_accept(const std::string& accept) {
  const double weight = accepted_weight(accept, "text/plain", "0.0.4");
  CHECK(weight >= 0 && weight <= 1);
  CHECK(accepted_weight(accept + "," + accept, "text/plain", "0.0.4") == weight);
  CHECK(accepted_weight(accept + ", text/plain;q=1", "text/plain", "0.0.4") == 1);
}

}  // namespace

static int trace_context_input(const uint8_t* data, size_t size) {
  std::istringstream text(std::string(reinterpret_cast<const char*>(data), size));
  std::array<std::string, kVariables.size()> lines;
  for (std::string& line : lines) std::getline(text, line);
  check_context(lines[0], lines[1]);
  check_accept(lines[0]);
  const auto settings = trace_settings(Config{}, [&](const char* name) -> const char* {
    for (size_t i = 0; i < kVariables.size(); ++i) {
      if (kVariables[i] == name) return lines[i].c_str();
    }
    return nullptr;
  });
  if (!settings || !*settings) return 0;
  CHECK((*settings)->ratio >= 0 && (*settings)->ratio <= 1);
  for (const auto& [name, value] : (*settings)->headers) {
    CHECK(!name.empty() && (name + value).find_first_of("\r\n") == std::string::npos);
  }
  return 0;
}

const sluice::fuzz::Target trace_context_target("trace_context_fuzz", trace_context_input);
