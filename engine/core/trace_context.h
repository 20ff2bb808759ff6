// SPDX-License-Identifier: Apache-2.0
// Where a request is in a distributed trace: the identifiers of W3C Trace Context, which a client
// gives in `traceparent` and `tracestate` and a router hands to its workers. The engine decides
// nothing by them: it notes them beside what it measures and hands them to the peers of a transfer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct TraceContext {
  std::array<uint8_t, 16> trace_id{};  // all zero: there is no trace
  std::array<uint8_t, 8> span_id{};    // the span that what is done for the request belongs to
  bool is_sampled = false;             // that span is recorded somewhere
  std::string state;                   // `tracestate`: of the vendors on the way, handed on unread

  [[nodiscard]] bool is_set() const { return trace_id != std::array<uint8_t, 16>{}; }
};

// From the two headers. A traceparent that is not one is as none at all, as the standard asks; so
// is a state of more than 512 bytes.
TraceContext parse_trace_context(std::string_view traceparent, std::string_view tracestate);

// The header for whatever is called next; the context is set.
std::string traceparent(const TraceContext& context);

}  // namespace sluice
