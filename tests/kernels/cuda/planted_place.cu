// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "tests/kernels/cuda/planted_experts.h"

namespace sluice::kernels::test {
namespace {

using Shape = PlaceShape;

constexpr int kLanes = 32;
constexpr int kWarps = Shape::kThreads / kLanes;
constexpr uint32_t kAllLanes = 0xFFFFFFFFU;

struct Work {
  const int32_t* ids;
  const float* y;
  const float* weights;
  Placed* placed;
};

__device__ __forceinline__ int32_t sum_up_to_lane(int32_t value) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  for (int32_t step = 1; step < kLanes; step *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

// Turns each expert's number of rows into its first row, by one warp.
template <PlaceBug kBug>
__device__ __forceinline__ void begin_rows(Placed& placed, int32_t* first) {
  constexpr int32_t kExperts = kBug == PlaceBug::kExpertsOfOneRound ? kLanes : Shape::kExperts;
  constexpr int32_t kAlign = kBug == PlaceBug::kRowsNotAligned ? 1 : Shape::kAlign;
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  int32_t num_rows = 0;
  int32_t num_chosen = kBug == PlaceBug::kChosenNotReset ? placed.num_chosen : 0;
  if (kBug == PlaceBug::kChosenNotReset) __syncwarp();
  for (int32_t begin = 0; begin < kExperts; begin += kLanes) {
    const int32_t expert = begin + lane;
    const bool exists = expert < kExperts;
    const int32_t count = exists ? first[expert] : 0;
    const int32_t rows = (count + kAlign - 1) / kAlign * kAlign;
    const int32_t chosen = count > 0 || (kBug == PlaceBug::kEmptyChosen && exists) ? 1 : 0;
    const int32_t row = num_rows + sum_up_to_lane(rows) - rows;
    const int32_t place = num_chosen % Shape::kExperts + sum_up_to_lane(chosen) - chosen;
    if (exists) {
      first[expert] = row;
      placed.first[expert] = row;
      placed.count[expert] = count;
    }
    if (chosen != 0) placed.chosen[place % Shape::kExperts] = expert;
    num_rows += __reduce_add_sync(kAllLanes, rows);
    num_chosen += __reduce_add_sync(kAllLanes, chosen);
  }
  if (lane == 0) placed.num_chosen = num_chosen;
}

// Places each pair of a warp's share, 32 at a time.
template <PlaceBug kBug>
__device__ __forceinline__ void place_share(
    const Work& work, int32_t begin, int32_t end, const int32_t* first, uint32_t* counts) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  for (int32_t i = begin; i < end; i += kLanes) {
    const bool exists = i + lane < end;
    const int32_t expert = exists ? work.ids[i + lane] : -1;
    const uint32_t same = __match_any_sync(kAllLanes, static_cast<uint32_t>(expert));
    const uint32_t below = (kBug == PlaceBug::kRankWithItself ? 2U : 1U) << lane;
    const int32_t before = __popc(same & (below - 1));
    if (exists) {
      work.placed->rows[i + lane] = first[expert] + static_cast<int32_t>(counts[expert]) + before;
    }
    if (kBug != PlaceBug::kNoSyncBeforeAdvance) __syncwarp();
    const bool leads = (same & ((1U << lane) - 1)) == 0;
    if (exists && (leads || kBug == PlaceBug::kEveryLaneAdvances)) {
      counts[expert] += static_cast<uint32_t>(__popc(same));
    }
    if (kBug != PlaceBug::kNoSyncAfterAdvance) __syncwarp();
  }
}

// The counting sort of kernels/cuda/moe.cu.
template <PlaceBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1) place_kernel(const Work work) {
  GPU_SHARED(uint32_t, all_counts, kWarps * Shape::kExperts);
  GPU_SHARED(int32_t, first, Shape::kExperts);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread / kLanes;
  const int32_t lane = thread % kLanes;
  uint32_t* const counts = all_counts + warp * Shape::kExperts;
  constexpr int32_t kShare = (Shape::kPairs + kWarps - 1) / kWarps;
  const int32_t begin = warp * kShare;
  int32_t end = begin + kShare < Shape::kPairs ? begin + kShare : Shape::kPairs;
  if (kBug == PlaceBug::kShareOneShort) --end;
  if (kBug != PlaceBug::kNotCleared) {
    for (int32_t e = lane; e < Shape::kExperts; e += kLanes) counts[e] = 0;
  }
  if (kBug != PlaceBug::kNoSyncAfterClear) __syncwarp();
  const int32_t counted =
      kBug == PlaceBug::kUnmaskedTail ? begin + (end - begin + kLanes - 1) / kLanes * kLanes : end;
  for (int32_t i = begin + lane; i < counted; i += kLanes) {
    uint32_t* const count = &counts[work.ids[i % Shape::kPairs]];
    if (kBug == PlaceBug::kPlainAdd) {
      *count += 1;
    } else {
      gpu::shared_add(count, 1U);
    }
  }
  if (kBug != PlaceBug::kNoBarrierAfterCounts) __syncthreads();
  constexpr int32_t kSummed = Shape::kExperts - (kBug == PlaceBug::kNotTheLastExpert ? 1 : 0);
  for (int32_t e = thread; e < kSummed; e += Shape::kThreads) {
    uint32_t before = 0;
    for (int32_t w = 0; w < kWarps; ++w) {
      uint32_t& count = all_counts[w * Shape::kExperts + e];
      const uint32_t own = count;
      count = before;
      before += own;
    }
    first[e] = static_cast<int32_t>(before);
  }
  if (kBug != PlaceBug::kNoBarrierBeforeBegin) __syncthreads();
  if (warp == 0) begin_rows<kBug>(*work.placed, first);
  if (kBug != PlaceBug::kNoBarrierAfterBegin) __syncthreads();
  place_share<kBug>(work, begin, end, first, counts);
}

// Joins a token's experts by a block: their outputs, weighted, in order.
template <PlaceBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1) join_kernel(const Work work) {
  const auto token = static_cast<int32_t>(blockIdx.x);
  constexpr int32_t kWidth = kBug == PlaceBug::kJoinTail ? Shape::kWidth + 1 : Shape::kWidth;
  constexpr int32_t kTopK = Shape::kTopK - (kBug == PlaceBug::kJoinOneShort ? 1 : 0);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kWidth; i += Shape::kThreads) {
    float sum = 0;
    for (int32_t j = 0; j < kTopK; ++j) {
      const int32_t at = kBug == PlaceBug::kJoinBackwards ? kTopK - 1 - j : j;
      const int32_t pair = token * Shape::kTopK + at;
      const int32_t row = kBug == PlaceBug::kJoinByPair ? pair : work.placed->rows[pair];
      sum = __fmaf_rn(work.y[row * Shape::kWidth + i], work.weights[pair], sum);
    }
    work.placed->joined[token * Shape::kWidth + i] = sum;
  }
}

template <PlaceBug kBug>
void start(const Work& work) {
  for (int launch = 0; launch < 2; ++launch) {  // the second one finds the first one's leftovers
    gpu::launch(nullptr, {.threads = Shape::kThreads}, place_kernel<kBug>, work);
    // A bug may leave any number as a place.
    for (int32_t& row : work.placed->rows) {
      if (row < 0 || row >= Shape::kRoom) row = 0;
    }
    gpu::launch(
        nullptr, {.blocks_x = Shape::kTokens, .threads = Shape::kThreads}, join_kernel<kBug>, work);
  }
}

}  // namespace

void run_place(
    PlaceBug bug, const int32_t* ids, const float* y, const float* weights, Placed& placed) {
  const Work work{.ids = ids, .y = y, .weights = weights, .placed = &placed};
  with_bug<PlaceBug::kJoinByPair>(bug, [&]<PlaceBug kBug>() { start<kBug>(work); });
}

}  // namespace sluice::kernels::test
