// SPDX-License-Identifier: Apache-2.0
// The first GPU of this process: what a Device of type kCuda is made from. No GPU has run it yet.
#pragma once

#include <memory>
#include <string>

#include "engine/core/status.h"
#include "kernels/device_memory.h"

struct CUstream_st;

namespace sluice::kernels::cuda {

struct OpenedDevice {
  std::unique_ptr<DeviceMemory> memory;  // owns the stream
  CUstream_st* stream = nullptr;         // that its copies are in
  std::string name;                      // of the GPU
};

// kUnsupported: this build has no CUDA backend, or this machine no driver, or no GPU that the
// kernels are compiled for; says which. kUnavailable: the GPU is another process's, or has no
// memory left for this one.
Expected<OpenedDevice> open_device();

}  // namespace sluice::kernels::cuda
