// SPDX-License-Identifier: Apache-2.0
// NVTX ranges for tools that watch a GPU: one for each step and, inside it, one for each operator.
// They do nothing on the CPU and cost next to nothing without a tool.
#pragma once

#include "engine/core/types.h"

namespace sluice::kernels {

// A range from construction to destruction, on one thread. `name` must be a string literal.
class TraceRange {
 public:
  TraceRange(DeviceType device, const char* name);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  const bool is_open_;
};

}  // namespace sluice::kernels
