// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted_products.h"

namespace sluice::kernels::test {
namespace {

namespace ptx = gpu::ptx;
using Shape = CopiesShape;

constexpr int kStages = 3;
constexpr int kRowBytes = 128;
constexpr int kPieces = kRowBytes / 16;

struct Ring {
  std::byte w[kStages][Shape::kOutputs * kRowBytes];
  std::byte x[kStages][Shape::kTokens * kRowBytes];
};

__device__ __forceinline__ int offset_of(int row, int piece) {
  return row * kRowBytes + (piece ^ row % 8) * 16;
}

__device__ __forceinline__ void copy_rows(std::byte* to,
                                          const uint16_t* from,
                                          int rows,
                                          int chunk) {
  for (auto i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += Shape::kThreads) {
    const int column = chunk * 64 + i % kPieces * 8;
    const int left = 2 * (Shape::kK - column);
    const int bytes = left < 0 ? 0 : left > 16 ? 16 : left;
    ptx::cp_async_16(to + offset_of(i / kPieces, i % kPieces),
                     from + i / kPieces * Shape::kStride + column,
                     bytes);
  }
}

template <CopiesBug kBug>
__device__ __forceinline__ void load(
    Ring& ring, const uint16_t* x, const uint16_t* w, int stage, int chunk) {
  if (chunk < Shape::kChunks) {
    copy_rows(ring.w[stage], w, Shape::kOutputs, chunk);
    copy_rows(ring.x[stage], x, Shape::kTokens, chunk);
  } else if (kBug == CopiesBug::kNoEmptyGroups) {
    return;
  }
  if (kBug != CopiesBug::kNoCommit) ptx::cp_async_commit();
}

template <CopiesBug kBug>
__device__ __forceinline__ void multiply(const Ring& ring, int stage, float (&d)[4]) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int matrix = thread % 32 / 8;
  const int row = thread % 8;
  const int w_row = thread / 32 * 16 + matrix % 2 * 8 + row;
  for (int step = 0; step < 4; step += 2) {
    uint32_t a[2][4];
    for (int i = 0; i < 2; ++i) {
      const int piece = 2 * (step + i) + matrix / 2;
      int offset = offset_of(w_row, piece);
      if (kBug == CopiesBug::kRowNotAligned) offset += 8;
      ptx::ldmatrix_x4(a[i], &ring.w[stage][offset]);
    }
    uint32_t b[4];
    ptx::ldmatrix_x4(b, &ring.x[stage][offset_of(row, 2 * step + matrix)]);
    if (kBug == CopiesBug::kPartOfAWarp && thread % 32 >= 16) continue;
    ptx::mma_bf16(d, a[0], b[0], b[1]);
    ptx::mma_bf16(d, a[1], b[2], b[3]);
  }
}

template <CopiesBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    copies_kernel(const uint16_t* x, const uint16_t* w, float* out) {
  GPU_DYN_SHARED(Ring, ring);
  for (int stage = 0; stage < kStages - 1; ++stage) load<kBug>(ring, x, w, stage, stage);
  float d[4] = {};
  for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
    const int next = chunk + kStages - 1;
    if (kBug == CopiesBug::kReuseBeforeBarrier) load<kBug>(ring, x, w, next % kStages, next);
    if (kBug == CopiesBug::kWaitTooWeak) {
      ptx::cp_async_wait<kStages - 1>();
    } else if (kBug == CopiesBug::kReuseBeforeBarrier) {
      ptx::cp_async_wait<kStages - 1>();  // right with one group more
    } else if (kBug != CopiesBug::kNoWait) {
      ptx::cp_async_wait<kStages - 2>();
    }
    if (kBug != CopiesBug::kNoBarrier) __syncthreads();
    if (kBug != CopiesBug::kReuseBeforeBarrier) load<kBug>(ring, x, w, next % kStages, next);
    multiply<kBug>(ring, chunk % kStages, d);
  }
  const auto thread = static_cast<int>(threadIdx.x);
  const int output = thread / 32 * 16 + thread % 32 / 4;
  for (int i = 0; i < 4; ++i) {
    out[(thread % 4 * 2 + i % 2) * Shape::kOutputs + output + i / 2 * 8] = d[i];
  }
}

template <CopiesBug kBug>
void start(const uint16_t* x, const uint16_t* w, float* out) {
  gpu::launch(nullptr,
              {.threads = Shape::kThreads, .shared_bytes = sizeof(Ring)},
              copies_kernel<kBug>,
              x,
              w,
              out);
}

}  // namespace

std::vector<float> run_copies(CopiesBug bug, const uint16_t* x, const uint16_t* w) {
  std::vector<float> out(Shape::kTokens * Shape::kOutputs, -1.0F);
  with_bug<CopiesBug::kPartOfAWarp>(
      bug, [&]<CopiesBug kBug>() { start<kBug>(x, w, out.data()); });
  return out;
}

}  // namespace sluice::kernels::test
