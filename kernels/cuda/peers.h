// SPDX-License-Identifier: Apache-2.0
// What a kernel needs that waits for other devices' launches: words by which they tell each other
// what is done, and launches whose blocks all run at the same time. Under nvcc here, elsewhere in
// the shim (tests/support/simt/peers_simt.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"

#if defined(__CUDACC__)

namespace sluice::gpu {

// Any device runs this many blocks of at most 128 threads at the same time, beside as many more.
inline constexpr int kBlocksTogether = 64;

// Starts at most kBlocksTogether blocks, along y. `overlaps` as in LaunchShape.
template <typename... Parameters, typename... Arguments>
void launch_together(Stream stream,
                     int64_t blocks,
                     int threads,
                     bool overlaps,
                     void (*kernel)(Parameters...),
                     const Arguments&... args) {
  CHECK_LE(blocks, int64_t{kBlocksTogether});
  launch(stream, {.blocks_y = blocks, .threads = threads, .overlaps = overlaps}, kernel, args...);
}

namespace ptx {

// Stores a number for wait_for_peer(). Who has seen it there sees what this thread has written or
// read before, and so have the threads that it has met.
__device__ __forceinline__ void tell_peer(uint32_t* word, uint32_t number) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(word), "r"(number) : "memory");
}

// Waits until a thread of another device has told this number or, counted around the end of 32
// bits, a later one. False: `stop`, a word in host memory, is not 0, or the wait took longer than
// the limit and has set it.
__device__ __forceinline__ bool wait_for_peer(const uint32_t* word,
                                              uint32_t number,
                                              uint32_t* stop,
                                              int64_t limit_ns) {
  constexpr int kLooks = 64;  // a look at the host's memory takes as long as many at the device's
  uint64_t begun = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
  for (;;) {
    for (int look = 0; look < kLooks; ++look) {
      uint32_t found = 0;
      asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(found) : "l"(word) : "memory");
      if (static_cast<int32_t>(found - number) >= 0) return true;
    }
    uint32_t stopped = 0;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(stopped) : "l"(stop) : "memory");
    if (stopped != 0) return false;
    uint64_t now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (static_cast<int64_t>(now - begun) <= limit_ns) continue;
    asm volatile("st.relaxed.sys.u32 [%0], 1;" ::"l"(stop) : "memory");
    return false;
  }
}

}  // namespace ptx
}  // namespace sluice::gpu

#else
#include "tests/support/simt/peers_simt.h"
#endif
