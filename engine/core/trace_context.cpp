// SPDX-License-Identifier: Apache-2.0
#include "engine/core/trace_context.h"

#include <algorithm>

#include "engine/core/hex.h"

namespace sluice {
namespace {

// "VV-" trace id "-" span id "-" flags, all in lower-case hexadecimal digits.
constexpr size_t kLength = 55;
constexpr size_t kTraceIdAt = 3;
constexpr size_t kSpanIdAt = 36;
constexpr size_t kFlagsAt = 53;
constexpr size_t kMaxStateBytes = 512;

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

TraceContext parse_trace_context(std::string_view traceparent, std::string_view tracestate) {
  TraceContext context;
  if (traceparent.size() < kLength) return {};
  const std::string_view version = traceparent.substr(0, 2);
  // A later version may append fields; in this one every byte is known.
  const bool is_first = version == "00";
  if (!is_hex(version) || version == "ff") return {};
  if (is_first ? traceparent.size() != kLength
               : traceparent.size() > kLength && traceparent[kLength] != '-') {
    return {};
  }
  for (const size_t dash : {kTraceIdAt, kSpanIdAt, kFlagsAt}) {
    if (traceparent[dash - 1] != '-') return {};
  }
  const std::string_view trace_id = traceparent.substr(kTraceIdAt, 32);
  const std::string_view span_id = traceparent.substr(kSpanIdAt, 16);
  const std::string_view flags = traceparent.substr(kFlagsAt, 2);
  if (!is_hex(trace_id) || !is_hex(span_id) || !is_hex(flags)) return {};
  std::array<uint8_t, 1> flag_bits{};
  from_hex(trace_id, context.trace_id);
  from_hex(span_id, context.span_id);
  from_hex(flags, flag_bits);
  if (!context.is_set() || context.span_id == std::array<uint8_t, 8>{}) return {};
  context.is_sampled = (flag_bits[0] & 1) != 0;
  if (tracestate.size() <= kMaxStateBytes && is_printable(tracestate)) context.state = tracestate;
  return context;
}

std::string traceparent(const TraceContext& context) {
  return "00-" + to_hex(context.trace_id) + "-" + to_hex(context.span_id) +
         (context.is_sampled ? "-01" : "-00");
}

}  // namespace sluice
