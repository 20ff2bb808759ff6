// SPDX-License-Identifier: Apache-2.0
// Moves a test program's heap to memory that the shim's launches may touch, and no other host
// memory: on a GPU, kernels of the same tests find no stack and no variable of theirs
// (tests/support/gpu/heap.h). Link it and tests/support/gpu/heap.cpp.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "engine/core/status.h"
#include "tests/support/gpu/heap.h"
#include "tests/support/simt/reach.h"

namespace sluice::simt {
namespace {

constexpr size_t kHeapBytes = size_t{64} << 30;  // addresses; pages come when they are touched

const bool is_shared = [] {
  void* const heap = mmap(nullptr,
                          kHeapBytes,
                          PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          -1,
                          0);
  CHECK(heap != MAP_FAILED);
  testing::move_heap(static_cast<std::byte*>(heap), kHeapBytes);
  share_heap(static_cast<std::byte*>(heap), static_cast<int64_t>(kHeapBytes));
  return true;
}();

}  // namespace
}  // namespace sluice::simt
