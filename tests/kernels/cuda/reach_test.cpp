// SPDX-License-Identifier: Apache-2.0
// The shim's device sees every way in which a launch accesses host memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/device.h"
#include "tests/support/simt/simt.h"

namespace sluice::kernels {
namespace {

constexpr int32_t kN = 64;
constexpr int64_t kBytes = int64_t{kN} * kN * 4;

enum class Place : uint8_t { kHost, kDevice };

// Runs launch(stream, host, device) to its end; the pointers are to kBytes zeros each.
template <typename Launch>
void run(Launch launch) {
  const auto device = Device::create({.type = DeviceType::kCuda, .threads = 1});
  CHECK(device.has_value());
  DeviceMemory& memory = (*device)->memory();
  const auto buffer = DeviceBuffer::allocate(memory, kBytes, "test");
  CHECK(buffer.has_value());
  std::vector<float> host(kN * kN);
  launch((*device)->context().stream, host.data(), reinterpret_cast<float*>(buffer->data()));
  memory.wait();
}

#ifdef SLUICE_SIMT_RACE  // only race mode sees a kernel's own reads and writes
void gather(Place from, Place to) {
  run([&](cuda::Stream stream, float* host, float* device) {
    cuda::launch_gather_rows(stream,
                             {.x = from == Place::kHost ? host : device,
                              .x_stride = kN,
                              .n = kN,
                              .indices = {reinterpret_cast<const int32_t*>(device), 1},
                              .out = to == Place::kHost ? host : device + kN,
                              .out_stride = kN});
  });
}
#endif

void multiply(int compute_capability, Place weight) {
  const simt::GivenDevice given(compute_capability);
  run([&](cuda::Stream stream, float* host, float* device) {
    cuda::launch_linear_half(
        stream,
        {.x = reinterpret_cast<const uint16_t*>(device),
         .x_stride = kN,
         .weight = reinterpret_cast<const uint16_t*>(weight == Place::kHost ? host : device),
         .weight_stride = kN,
         .num_rows = 1,
         .n = 8,
         .k = kN,
         .out = device + kN * kN / 2,
         .out_stride = kN});
  });
}

#ifdef SLUICE_SIMT_RACE
TEST(CudaReachDeathTest, ReadsAndWritesOfAKernel) {
  gather(Place::kDevice, Place::kDevice);
  EXPECT_DEATH(gather(Place::kHost, Place::kDevice), "a kernel reads: 4 bytes of host memory");
  EXPECT_DEATH(gather(Place::kDevice, Place::kHost), "a kernel writes: 4 bytes of host memory");
}
#endif

TEST(CudaReachDeathTest, TensorCopies) {
  multiply(90, Place::kDevice);
  EXPECT_DEATH(multiply(90, Place::kHost), "a tensor copy: 2 bytes of host memory");
}

TEST(CudaReachDeathTest, AsynchronousCopies) {
  multiply(80, Place::kDevice);
  EXPECT_DEATH(multiply(80, Place::kHost), "cp_async_16 at .*: 16 bytes of host memory");
}

}  // namespace
}  // namespace sluice::kernels
