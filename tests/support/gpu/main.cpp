// SPDX-License-Identifier: Apache-2.0
// Runs tests on the first GPU. Without one it prints why and exits with 77: skipped, for ctest.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "engine/core/status.h"
#include "engine/engine.h"
#include "kernels/cuda/open_device.h"
#include "tests/support/gpu/heap.h"

namespace {

constexpr int kSkipped = 77;
constexpr size_t kHeapBytes = size_t{1} << 30;

#ifdef SLUICE_TESTS_SHARE_HEAP
// Kernels get the tests' vectors; a launch without a stream is done when it returns. Managed memory
// needs the driver's paging; SLUICE_GPU_HEAP=host avoids it.
bool share_heap() {
  const char* const kind = std::getenv("SLUICE_GPU_HEAP");
  const bool on_host = kind != nullptr && std::string_view(kind) == "host";
  void* heap = nullptr;
  const cudaError_t result =
      on_host ? cudaHostAlloc(&heap, kHeapBytes, cudaHostAllocMapped | cudaHostAllocPortable)
              : cudaMallocManaged(&heap, kHeapBytes);
  if (result != cudaSuccess) {
    std::printf(
        "%s: %s\n", on_host ? "cudaHostAlloc" : "cudaMallocManaged", cudaGetErrorString(result));
    return false;
  }
  sluice::testing::move_heap(static_cast<std::byte*>(heap), kHeapBytes);
  return true;
}
#endif

}  // namespace

int main(int argc, char** argv) {
#ifdef SLUICE_TESTS_WITH_ENGINE
  // An engine starts its own program to compile a grammar.
  if (const auto exit_code = sluice::run_helper_process(argc, argv)) return *exit_code;
#endif
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
    // Small tests are as hard with as few blocks as the shim has (simt.h); real_shapes.h has all.
    sluice::kernels::cuda::limit_blocks(5, 3);
  }
#ifdef SLUICE_TESTS_SHARE_HEAP
  if (!share_heap()) return 1;
#endif
  ::testing::InitGoogleTest(&argc, argv);
  int result = RUN_ALL_TESTS();
  std::cout.flush();
  std::fflush(nullptr);
  // A sanitizer misses unfinished work. This does not return after a kernel without an end; the
  // tests' output is printed by then.
  const cudaError_t last = cudaDeviceSynchronize();
  if (last != cudaSuccess) {
    std::printf("after the last test: %s\n", cudaGetErrorString(last));
    std::fflush(nullptr);
    if (result == 0) result = 1;
  }
  // Static objects are not destroyed: the runtime frees the heap that they are in.
  std::_Exit(result);
}
