// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu/run.h"

#include <cuda_runtime.h>

#include "engine/core/status.h"

namespace sluice::simt {

Run::Run(uint64_t /*seed*/, Mode /*mode*/) {}

std::vector<std::string> Run::take_reports() {
  const cudaError_t result = cudaDeviceSynchronize();
  cudaGetLastError();
  if (result == cudaSuccess) return {};
  return {cudaGetErrorString(result)};
}

GivenDevice::GivenDevice(int compute_capability) {
  int major = 0;
  int minor = 0;
  CHECK_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  CHECK_EQ(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), cudaSuccess);
  is_here_ = major * 10 + minor == compute_capability;
}

}  // namespace sluice::simt
