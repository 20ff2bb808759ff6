// SPDX-License-Identifier: Apache-2.0
// The header of every .cu file: CUDA under nvcc, elsewhere the shim that runs kernels on the CPU
// (tests/support/simt). kernels/cuda/README.md has the rules that keep one source good for both.
#pragma once

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "engine/core/status.h"

// Shared memory of the block: an array of n, or the launch's dynamic part as one struct or array.
#define GPU_SHARED(T, name, n) __shared__ T name[n]
#define GPU_DYN_SHARED(T, name)                                         \
  extern __shared__ __align__(1024) unsigned char gpu_dynamic_shared[]; \
  T& name = *reinterpret_cast<T*>(gpu_dynamic_shared)
#define GPU_DYN_SHARED_ARRAY(T, name)                                   \
  extern __shared__ __align__(1024) unsigned char gpu_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(gpu_dynamic_shared)

namespace sluice::gpu {

using Stream = cudaStream_t;

inline int current_device() {
  int device = 0;
  CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
  return device;
}

// Returns the current device's compute capability, major * 10 + minor.
inline int compute_capability() {
  const int device = current_device();
  int major = 0;
  int minor = 0;
  CHECK_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), cudaSuccess);
  CHECK_EQ(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), cudaSuccess);
  return major * 10 + minor;
}

// Bounds that limit_blocks() sets (open_device.h); 0: none.
inline std::atomic<int> most_multiprocessors = 0;
inline std::atomic<int> most_blocks = 0;

inline int64_t at_most(int64_t number, int64_t most) {
  return most == 0 ? number : std::min(number, most);
}

// Returns the number of multiprocessors of the current device.
inline int multiprocessors() {
  const int device = current_device();
  int number = 0;
  CHECK_EQ(cudaDeviceGetAttribute(&number, cudaDevAttrMultiProcessorCount, device), cudaSuccess);
  return static_cast<int>(at_most(number, most_multiprocessors));
}

// Adds atomically to an integer in shared memory; returns the value before. Floats have no such
// function, since their sums depend on the order.
__device__ __forceinline__ uint32_t shared_add(uint32_t* p, uint32_t value) {
  return atomicAdd(p, value);
}

__device__ __forceinline__ unsigned long long shared_add(unsigned long long* p,
                                                         unsigned long long value) {
  return atomicAdd(p, value);
}

// Counts an arrival at a counter in global memory, which is 0 before the first of `arrivals` and
// again after the last. Returns whether this is the last. ptx::fence_device orders memory, this
// does not.
__device__ __forceinline__ bool arrive_last(uint32_t* counter, uint32_t arrivals) {
  return atomicInc(counter, arrivals - 1) == arrivals - 1;
}

struct LaunchShape {
  int64_t blocks_x = 1;
  int64_t blocks_y = 1;
  int threads = 128;
  int64_t shared_bytes = 0;
  // Whether blocks may start before the launches in front have ended (programmatic dependent
  // launch, Hopper and later). Every thread calls ptx::wait_for_launches before it ends, before it
  // writes global memory, and before it reads what a launch, an upload, a communicator or a queue
  // that the stream waits for may have written since the last launch that does not overlap: CUDA
  // does not say which of them hold up a launch that may pass the one in front.
  bool overlaps = false;
};

// Whether launches overlap on the current device.
inline bool device_overlaps() {
  static std::array<std::atomic<int>, 64> known;  // by device; 0: not asked yet, 1: no, 2: yes
  const int device = current_device();
  if (device >= static_cast<int>(known.size())) return compute_capability() >= 90;
  std::atomic<int>& answer = known[static_cast<size_t>(device)];
  if (answer == 0) answer = compute_capability() >= 90 ? 2 : 1;
  return answer == 2;
}

// Allows a kernel's launches on the current device this much dynamic shared memory. The driver is
// asked once a device and never for less: another thread's launch may need the amount allowed
// before.
inline void allow_shared_bytes(const void* kernel, int64_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int64_t> allowed;  // guarded by mutex
  const int device = current_device();
  const std::scoped_lock lock(mutex);
  int64_t& most = allowed[{kernel, device}];
  if (bytes <= most) return;
  CHECK_EQ(cudaFuncSetAttribute(
               kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
           cudaSuccess);
  most = bytes;
}

// Returns how many blocks of such a launch, whatever its grid, the current device runs at once. The
// driver is asked once for each kernel and device, so a kernel has one number of threads and one
// size of shared memory.
template <typename... Parameters>
int64_t blocks_at_once(const LaunchShape& shape, void (*kernel)(Parameters...)) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int64_t> known;  // guarded by mutex
  const auto* const function = reinterpret_cast<const void*>(kernel);
  allow_shared_bytes(function, shape.shared_bytes);
  const std::scoped_lock lock(mutex);
  int64_t& blocks = known[{function, current_device()}];
  if (blocks > 0) return at_most(blocks, most_blocks);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  // CUDA counts over a whole device only clusters: these are of one block.
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {1, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  int count = 0;
  CHECK_EQ(cudaOccupancyMaxActiveClusters(&count, function, &config), cudaSuccess);
  CHECK_GT(count, 0);
  blocks = count;
  return at_most(blocks, most_blocks);
}

// Starts a kernel on a stream of the current device; nothing else does. A refused launch has wrong
// arguments, which is our bug. A kernel's failure shows at the next wait for the stream.
template <typename... Parameters, typename... Arguments>
void launch(Stream stream,
            const LaunchShape& shape,
            void (*kernel)(Parameters...),
            const Arguments&... args) {
  if (shape.blocks_x == 0 || shape.blocks_y == 0) return;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(static_cast<unsigned>(shape.blocks_x), static_cast<unsigned>(shape.blocks_y));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute overlap;
  config.attrs = &overlap;
  if (shape.overlaps && device_overlaps()) {
    config.numAttrs = 1;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, args...);
  if (launched != cudaSuccess) SLUICE_UNREACHABLE(cudaGetErrorString(launched));
}

}  // namespace sluice::gpu

#else
#include "tests/support/simt/simt.h"
#endif
