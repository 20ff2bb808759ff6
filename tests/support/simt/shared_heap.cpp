// SPDX-License-Identifier: Apache-2.0
// Moves a test program's heap to memory that the shim's launches reach, and nothing else of the
// host: where the same tests run on a GPU, kernels find no stack and no variable of theirs
// (tests/support/gpu/heap.h). Link it and tests/support/gpu/heap.cpp.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "engine/core/status.h"
#include "tests/support/gpu/heap.h"
#include "tests/support/simt/reach.h"

namespace sluice::simt {
namespace {

constexpr size_t kHeapBytes = size_t{64} << 30;  // of addresses; pages come as they are touched

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
