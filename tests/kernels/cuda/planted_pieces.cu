// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/order.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"
#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {
namespace {

using Shape = PiecesShape;
using cuda::kAllLanes;
namespace ptx = gpu::ptx;

constexpr int kWarps = Shape::kThreads / 32;

// Gives every thread the number of the block's `held` that reach `least`.
template <PiecesBug kBug, int kHeld>
__device__ __forceinline__ int32_t count_in_block(const uint64_t (&held)[kHeld],
                                                  uint64_t least,
                                                  int round) {
  GPU_SHARED(int32_t, by_warp, 2 * kWarps);
  int32_t mine = 0;
  for (int i = 0; i < kHeld; ++i) mine += held[i] >= least ? 1 : 0;
  int32_t* const now = by_warp + (kBug == PiecesBug::kCountsShareAPlace ? 0 : round % 2 * kWarps);
  mine = __reduce_add_sync(kAllLanes, mine);
  if (threadIdx.x % 32 == 0) now[threadIdx.x / 32] = mine;
  __syncthreads();
  int32_t all = 0;
  for (int i = 0; i < kWarps; ++i) all += now[i];
  return all;
}

// Returns the rank that exactly the kListed highest of the block's reach; 0: there are fewer.
template <PiecesBug kBug, int kHeld>
__device__ __forceinline__ uint64_t threshold_of(const uint64_t (&held)[kHeld]) {
  uint64_t found = 0;
  for (int bit = 63, round = 0; bit >= 0; --bit, ++round) {
    const uint64_t next = found | uint64_t{1} << bit;
    if (count_in_block<kBug>(held, next, round) >= Shape::kListed) found = next;
  }
  return found;
}

template <PiecesBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    scan_kernel(const float* values, uint64_t* lists) {
  GPU_SHARED(uint32_t, num_listed, 1);
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto piece = static_cast<int>(blockIdx.x);
  const int begin = piece * Shape::kPiece;
  uint64_t held[Shape::kPiece / Shape::kThreads];
  for (int j = 0; j < Shape::kPiece / Shape::kThreads; ++j) {
    const int i = begin + thread + j * Shape::kThreads;
    held[j] = i < Shape::kValues ? cuda::rank_of(values[i], i) : 0;
  }
  if (thread == 0) num_listed[0] = 0;
  uint64_t threshold = threshold_of<kBug>(held);
  if (kBug == PiecesBug::kReadsAnotherPiece) {
    const uint64_t other = lists[(piece + 1) % Shape::kPieces * Shape::kListed];
    threshold = other == 1 ? 0 : threshold;
  }
  const int skipped = kBug == PiecesBug::kListsOverlap && piece > 0 ? 1 : 0;
  uint64_t* const list = lists + piece * Shape::kListed - skipped;
  for (const uint64_t rank : held) {
    if (rank != 0 && rank >= threshold) list[gpu::shared_add(num_listed, 1U)] = rank;
  }
  if (kBug != PiecesBug::kNoBarrierBeforeTheRest) __syncthreads();
  const auto listed = static_cast<int>(num_listed[0]);
  if (listed + thread < Shape::kListed) list[listed + thread] = 0;
}

template <PiecesBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    join_kernel(const uint64_t* lists, float* out) {
  constexpr int kCount = Shape::kPieces * Shape::kListed;
  static_assert(kCount <= Shape::kThreads);
  const auto thread = static_cast<int>(threadIdx.x);
  uint64_t own[1] = {0};
  if (kBug == PiecesBug::kJoinsBeforeTheWait && thread < kCount) own[0] = lists[thread];
  if (kBug == PiecesBug::kLeavesWithoutTheWait && thread >= kCount) return;
  ptx::wait_for_launches();
  if (kBug != PiecesBug::kJoinsBeforeTheWait && thread < kCount) own[0] = lists[thread];
  const uint64_t threshold = threshold_of<kBug>(own);
  if (own[0] == 0 || own[0] < threshold) return;
  int place = 0;
  for (int i = 0; i < kCount; ++i) place += lists[i] > own[0] ? 1 : 0;
  if (place < Shape::kListed) out[place] = static_cast<float>(cuda::index_of(own[0]));
}

}  // namespace

std::vector<float> run_pieces(PiecesBug bug, const std::vector<float>& values) {
  // Places that a list does not clear hold a rank above all others.
  std::vector<uint64_t> lists(Shape::kPieces * Shape::kListed, ~uint64_t{0});
  std::vector<float> out(Shape::kListed, -1.0F);
  gpu::LaunchShape shape{.blocks_x = Shape::kPieces, .threads = Shape::kThreads, .overlaps = true};
  with_bug<PiecesBug::kLeavesWithoutTheWait>(bug, [&]<PiecesBug kBug>() {
    gpu::launch(nullptr, shape, scan_kernel<kBug>, values.data(), lists.data());
    shape.blocks_x = 1;
    gpu::launch(nullptr, shape, join_kernel<kBug>, lists.data(), out.data());
  });
  return out;
}

}  // namespace sluice::kernels::test
