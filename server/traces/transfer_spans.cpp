// SPDX-License-Identifier: Apache-2.0
#include "server/traces/transfer_spans.h"

#include <string>
#include <utility>

namespace sluice {

void TransferSpans::transfer_ended(const KvTransferReport& report) {
  if (!tracer_.is_recording()) return;
  Span span;
  span.context = tracer_.begin(report.trace);
  if (!span.context.is_sampled) return;
  span.parent = report.trace.span_id;
  span.name = report.is_out ? "kv_transfer send" : "kv_transfer receive";
  span.kind = report.is_out ? SpanKind::kServer : SpanKind::kClient;
  span.start_ns = unix_ns(report.begin);
  span.end_ns = unix_ns(report.end);
  const std::string outcome(report.outcome);
  span.attributes = {{"sluice.kv.blocks", report.num_blocks},
                     {"sluice.kv.bytes", static_cast<int64_t>(report.num_bytes)},
                     {"sluice.kv.transport", std::string(report.transport)},
                     {"sluice.kv.outcome", outcome}};
  if (report.outcome != kTransferDone) {
    span.is_error = true;
    span.error = "The KV did not come: " + outcome + ".";
    span.attributes.emplace_back("error.type", outcome);
  }
  tracer_.add(std::move(span));
}

}  // namespace sluice
