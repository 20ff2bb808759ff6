// SPDX-License-Identifier: Apache-2.0
// Names for stretches of a thread's time, for tools that watch a GPU: NVTX ranges, one for each
// step and inside it one for each operator. On the CPU nothing, and next to nothing where no tool
// listens.
#pragma once

#include "engine/core/types.h"

namespace sluice::kernels {

// From here to the end of its scope, on the thread that made it. `name` is a literal.
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
