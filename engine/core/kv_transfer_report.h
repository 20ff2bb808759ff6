// SPDX-License-Identifier: Apache-2.0
// The outcome of one transfer of KV between this worker and a peer, for traces.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "engine/core/trace_context.h"

namespace sluice {

inline constexpr std::string_view kTransferDone = "done";

struct KvTransferReport {
  TraceContext trace;          // of the request whose prompt it is; set and sampled
  bool is_out = false;         // true: this worker sent the prompt's KV; false: received it
  std::string_view outcome;    // kTransferDone, or in a word why not; static
  std::string_view transport;  // a KvTransportKind's name; static
  int64_t num_blocks = 0;      // that were moved
  uint64_t num_bytes = 0;
  std::chrono::steady_clock::time_point begin;  // out: it was claimed; in: the request came
  std::chrono::steady_clock::time_point end;
};

// Implemented by a front end, called on the engine thread between steps: take it and return.
class KvTransferWatcher {
 public:
  virtual ~KvTransferWatcher() = default;
  virtual void transfer_ended(const KvTransferReport& report) = 0;
};

}  // namespace sluice
