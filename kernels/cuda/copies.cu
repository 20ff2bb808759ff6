// SPDX-License-Identifier: Apache-2.0
// Small copies between device and pinned memory by threads, which can access both.
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {

namespace ptx = gpu::ptx;

namespace {

constexpr int kCopyThreads = 256;
constexpr int kThreadPieces = 4;  // in flight at once
constexpr int64_t kPieceBytes = sizeof(uint4);
constexpr int64_t kWordBytes = sizeof(uint32_t);
constexpr int64_t kBlockBytes = kCopyThreads * kThreadPieces * kPieceBytes;

__global__ void __launch_bounds__(kCopyThreads, 1)
    copy_kernel(std::byte* to, const std::byte* from, int64_t bytes) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const int64_t first = blockIdx.x * kBlockBytes + threadIdx.x * kPieceBytes;
  uint4 pieces[kThreadPieces];
#pragma unroll
  for (int i = 0; i < kThreadPieces; ++i) {
    const int64_t at = first + i * kCopyThreads * kPieceBytes;
    if (at + kPieceBytes <= bytes) pieces[i] = *reinterpret_cast<const uint4*>(from + at);
  }
#pragma unroll
  for (int i = 0; i < kThreadPieces; ++i) {
    const int64_t at = first + i * kCopyThreads * kPieceBytes;
    if (at + kPieceBytes <= bytes) {
      *reinterpret_cast<uint4*>(to + at) = pieces[i];
    } else {
      for (int64_t j = at; j < bytes; ++j) to[j] = from[j];
    }
  }
}

struct CopiedParts {
  std::byte* to;
  const std::byte* from;
  DeviceMemory::Part parts[kMostCopyParts];
  int32_t count;
};

// Copies one word per thread; the words of all parts are numbered one after another.
__global__ void __launch_bounds__(kCopyThreads, 1)
    copy_parts_kernel(const __grid_constant__ CopiedParts copied) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  int64_t at = (int64_t{blockIdx.x} * kCopyThreads + threadIdx.x) * kWordBytes;
  for (int32_t i = 0; i < copied.count; ++i) {
    const DeviceMemory::Part& part = copied.parts[i];
    const int64_t all = part.bytes * part.num_rows;
    if (at < all) {
      const int64_t place = part.begin + at / part.bytes * part.stride + at % part.bytes;
      *reinterpret_cast<uint32_t*>(copied.to + place) =
          *reinterpret_cast<const uint32_t*>(copied.from + place);
      return;
    }
    at -= all;
  }
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kPieceBytes == 0; }

bool is_of_words(const DeviceMemory::Part& part) {
  return part.begin % kWordBytes == 0 && part.bytes % kWordBytes == 0 &&
         part.stride % kWordBytes == 0;
}

}  // namespace

void launch_copy(Stream stream, std::byte* to, const std::byte* from, int64_t bytes) {
  CHECK(is_aligned(to) && is_aligned(from));
  gpu::launch(stream,
              {.blocks_x = ceil_div(bytes, kBlockBytes),
               .threads = kCopyThreads,
               .overlaps = overlaps(LaunchKind::kCopy, 1)},
              copy_kernel,
              to,
              from,
              bytes);
}

void launch_copy_parts(Stream stream,
                       std::byte* to,
                       const std::byte* from,
                       std::span<const DeviceMemory::Part> parts) {
  CHECK_LE(parts.size(), kMostCopyParts);
  CopiedParts copied{.to = to, .from = from, .parts = {}, .count = 0};
  int64_t bytes = 0;
  for (const DeviceMemory::Part& part : parts) {
    CHECK(is_of_words(part));
    if (part.bytes == 0 || part.num_rows == 0) continue;
    copied.parts[copied.count++] = part;
    bytes += part.bytes * part.num_rows;
  }
  gpu::launch(stream,
              {.blocks_x = ceil_div(bytes, kCopyThreads * kWordBytes),
               .threads = kCopyThreads,
               .overlaps = overlaps(LaunchKind::kCopy, 1)},
              copy_parts_kernel,
              copied);
}

}  // namespace sluice::kernels::cuda
