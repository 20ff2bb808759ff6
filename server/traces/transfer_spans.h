// SPDX-License-Identifier: Apache-2.0
// Spans of KV on its way between workers. Both ends of a transfer are below the span of the request
// that the decode worker answers: its context goes to the prefill worker with the claim.
#pragma once

#include "engine/core/kv_transfer_report.h"
#include "server/traces/tracer.h"

namespace sluice {

class TransferSpans final : public KvTransferWatcher {
 public:
  explicit TransferSpans(Tracer& tracer) : tracer_(tracer) {}

  // The engine's thread.
  void transfer_ended(const KvTransferReport& report) override;

 private:
  Tracer& tracer_;
};

}  // namespace sluice
