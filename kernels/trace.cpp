// SPDX-License-Identifier: Apache-2.0
#include "kernels/trace.h"

#include "kernels/cuda/cuda_operators.h"

namespace sluice::kernels {

TraceRange::TraceRange(DeviceType device, const char* name)
    : is_open_(device == DeviceType::kCuda) {
  if (is_open_) cuda::begin_range(name);
}

TraceRange::~TraceRange() {
  if (is_open_) cuda::end_range();
}

}  // namespace sluice::kernels
