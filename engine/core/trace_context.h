// SPDX-License-Identifier: Apache-2.0
// A request's place in a distributed trace: the identifiers of W3C Trace Context, which a client
// gives in `traceparent` and `tracestate` and a router passes to its workers. The engine
// decides nothing by it: it notes it beside its measurements and tells it to peers of a transfer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct TraceContext {
  std::array<uint8_t, 16> trace_id{};  // all zero: no trace
  std::array<uint8_t, 8> span_id{};    // the parent span of the work for the request
  bool is_sampled = false;             // whether that span is recorded
  std::string state;                   // `tracestate`: vendors' data, passed on unread

  [[nodiscard]] bool is_set() const { return trace_id != std::array<uint8_t, 16>{}; }
};

// Parses the two headers. A malformed traceparent counts as absent, as the standard asks; so does a
// state of more than 512 bytes.
TraceContext parse_trace_context(std::string_view traceparent, std::string_view tracestate);

// Returns the header for the next callee; the context must be set.
std::string traceparent(const TraceContext& context);

}  // namespace sluice
