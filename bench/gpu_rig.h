// SPDX-License-Identifier: Apache-2.0
// The GPU of a benchmark: memory with random contents, times on it, and its limits, probed in the
// same run. One thread.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "kernels/cuda/open_device.h"
#include "kernels/device_memory.h"

namespace sluice::bench {

class GpuRig {
 public:
  // Returns once the GPU's clocks are high.
  static Expected<std::unique_ptr<GpuRig>> open();

  [[nodiscard]] cudaStream_t stream() const { return opened_.stream; }

  [[nodiscard]] const std::string& name() const { return opened_.name; }

  // Memory of zeros, or of random 16-bit words from 0x3800 to 0x3FFF, which are small and normal as
  // halves of floats, bfloat16 and fp16, and arbitrary as bytes. Without memory the process ends.
  kernels::DeviceBuffer zeros(int64_t bytes);
  kernels::DeviceBuffer random(int64_t bytes);
  // `count` numbers of a normal distribution, as floats or rounded toward zero to bfloat16, for
  // attention: its exponentials take other branches for low scores, which positive words lack.
  kernels::DeviceBuffer normal_floats(int64_t count);
  kernels::DeviceBuffer normal_bf16(int64_t count);
  kernels::DeviceBuffer copy_of(const void* host, int64_t bytes);
  std::vector<std::byte> to_host(const kernels::DeviceBuffer& buffer);

  // Returns how many inputs of `bytes` bytes, used in turn, leave none of the first in the L2
  // cache.
  [[nodiscard]] int32_t copies_for(int64_t bytes) const;

  // Returns the seconds of one work(i), i below `count`. All are recorded into one graph, which is
  // run several times in a row after some uncounted runs; the median of some such rows counts.
  double seconds(int32_t count, const std::function<void(int32_t)>& work);

  // Bytes a second that a kernel reads, and that a copy within the device reads and writes.
  double probe_read();
  double probe_copy();

 private:
  explicit GpuRig(kernels::cuda::OpenedDevice opened);
  // Returns memory filled with the piece's bytes over and over.
  kernels::DeviceBuffer repeated(const void* piece, int64_t piece_bytes, int64_t bytes);

  kernels::cuda::OpenedDevice opened_;
  int64_t l2_bytes_ = 0;
};

void must(cudaError_t result, const char* what);

// Returns main()'s result: body's, or 77 without a GPU. Prints the GPU's name, or why there is
// none.
int run_on_gpu(const std::function<int(GpuRig&)>& body);

}  // namespace sluice::bench
