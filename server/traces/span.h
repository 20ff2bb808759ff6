// SPDX-License-Identifier: Apache-2.0
// One finished span, in OpenTelemetry's words.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/trace_context.h"

namespace sluice {

using SpanValue = std::variant<std::string, int64_t, double, std::vector<std::string>>;

struct SpanEvent {
  std::string name;
  int64_t time_ns = 0;  // since the Unix epoch
};

// OTLP's numbers.
enum class SpanKind : uint8_t { kServer = 2, kClient = 3 };

struct Span {
  SpanKind kind = SpanKind::kServer;
  TraceContext context;             // its own span_id
  std::array<uint8_t, 8> parent{};  // all zero: it has none
  std::string name;
  int64_t start_ns = 0;  // since the Unix epoch
  int64_t end_ns = 0;
  std::vector<std::pair<std::string, SpanValue>> attributes;
  std::vector<SpanEvent> events;
  bool is_error = false;
  std::string error;  // with is_error: one line
};

}  // namespace sluice
