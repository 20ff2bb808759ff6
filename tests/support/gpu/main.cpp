// SPDX-License-Identifier: Apache-2.0
// Runs tests on the first GPU. Where there is none: a line that says why, and exit code 77, which
// ctest takes for skipped.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "engine/core/status.h"
#include "kernels/cuda/open.h"
#include "tests/support/gpu/heap.h"

namespace {

constexpr int kSkipped = 77;
constexpr size_t kHeapBytes = size_t{1} << 30;

#ifdef SLUICE_TESTS_SHARE_HEAP
// The tests' vectors are what kernels get; a launch without a stream is done when it returns.
bool share_heap() {
  void* heap = nullptr;
  if (cudaMallocManaged(&heap, kHeapBytes) != cudaSuccess) return false;
  sluice::testing::move_heap(static_cast<std::byte*>(heap), kHeapBytes);
  return true;
}
#endif

}  // namespace

int main(int argc, char** argv) {
#ifdef SLUICE_TESTS_SHARE_HEAP
  CHECK_EQ(::setenv("CUDA_LAUNCH_BLOCKING", "1", 1), 0);  // read at the first call of CUDA
#endif
  {
    const auto device = sluice::kernels::cuda::open_device(0);
    if (!device) {
      std::printf("skipped: %s\n", device.error().message.c_str());
      return kSkipped;
    }
    std::printf("on %s\n", device->name.c_str());
  }
#ifdef SLUICE_TESTS_SHARE_HEAP
  if (!share_heap()) {
    std::printf("cudaMallocManaged: no memory that both sides reach\n");
    return 1;
  }
#endif
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  // No destructors of static objects: the runtime takes the heap that they are in down with it.
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(result);
}
