// SPDX-License-Identifier: Apache-2.0
// Opens a GPU of this process, for a Device of type kCuda.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "engine/core/status.h"
#include "kernels/device_memory.h"

struct CUstream_st;

namespace sluice::kernels::cuda {

struct OpenedDevice {
  std::unique_ptr<DeviceMemory> memory;  // owns the stream
  CUstream_st* stream = nullptr;         // the stream of its copies
  std::string name;                      // the GPU's; a MIG slice's with its size
};

// Opens GPU `number` of those that CUDA shows this process, from 0 on. kUnsupported: this build has
// no CUDA backend, or this machine has no driver or no GPU. kUnavailable: there are not so many
// GPUs, the driver is older than this build's CUDA, the kernels are not compiled for this GPU, or
// the GPU is used by a process that excludes others or has no free memory. The message names the
// cause. The first call must be made before the process has threads that read the environment.
Expected<OpenedDevice> open_device(int number);

// Lets kernels that share out their work count on no more than these blocks at once, as the shim of
// the tests does, so that a block takes several tiles of a small test. Call it before any launch.
void limit_blocks(int most_multiprocessors, int most_blocks);

// What hides GPUs from this process, for the end of an error; empty: nothing does. CUDA stops at
// the first name in CUDA_VISIBLE_DEVICES that it does not know, an index or the UUID of a GPU or a
// MIG slice, and shows those in front of it.
inline std::string hidden_by_environment() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return "";
  return "; CUDA_VISIBLE_DEVICES is '" + std::string(visible) +
         "', which shows what stands in front of its first unknown name";
}

inline tl::unexpected<Error> too_few_devices(int count, int number) {
  return make_error(ErrorCode::kUnavailable,
                    "CUDA devices: found " + std::to_string(count) + ", expected " +
                        std::to_string(number + 1) + hidden_by_environment(),
                    "device");
}

inline tl::unexpected<Error> no_device(const std::string& cause) {
  return make_error(
      ErrorCode::kUnsupported, "no CUDA device: " + cause + hidden_by_environment(), "device");
}

}  // namespace sluice::kernels::cuda
