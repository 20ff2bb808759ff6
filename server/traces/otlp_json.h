// SPDX-License-Identifier: Apache-2.0
// Spans as OTLP's ExportTraceServiceRequest in its JSON form (opentelemetry-proto 1.x: identifiers
// in hexadecimal digits, 64-bit integers as text).
#pragma once

#include <span>
#include <string>

#include "server/traces/span.h"
#include "server/traces/trace_settings.h"

namespace sluice {

std::string otlp_json(const TraceSettings& settings, std::span<const Span> spans);

}  // namespace sluice
