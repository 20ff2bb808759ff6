// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/order.h"
#include "tests/kernels/cuda/planted_experts.h"

namespace sluice::kernels::test {
namespace {

using Shape = RouterShape;

constexpr int kLanes = 32;
constexpr int32_t kGroup = 32;  // columns
constexpr int32_t kGroups = (Shape::kK + kGroup - 1) / kGroup;

struct Work {
  const float* x;
  const float* w;
  float* logits;
  float* ids;
  float* weights;
};

// Computes the chain of one segment of one output, for the tile's tokens.
template <RouterBug kBug>
__device__ __forceinline__ void multiply(const Work& work,
                                         int32_t token,
                                         int32_t output,
                                         int32_t segment,
                                         float (&sum)[Shape::kTokensOfTile]) {
  int32_t begin = segment * kGroups / Shape::kSegments;
  int32_t end = (segment + 1) * kGroups / Shape::kSegments;
  if (kBug == RouterBug::kSegmentOneShort) --end;
  if (kBug == RouterBug::kSegmentOverlaps && begin > 0) --begin;
  const int32_t row = output < Shape::kExperts ? output : 0;
  const int32_t columns = kBug == RouterBug::kUnmaskedColumns ? kGroups * kGroup : Shape::kK;
  float odd[Shape::kTokensOfTile] = {};
  for (int32_t column = begin * kGroup; column < end * kGroup; ++column) {
    const float w = column < columns ? work.w[row * Shape::kStride + column] : 0.0F;
    for (int32_t i = 0; i < Shape::kTokensOfTile; ++i) {
      const int32_t from = token + i < Shape::kTokens ? token + i : token;
      const bool to_odd = kBug == RouterBug::kTwoChains && column % 2 != 0;
      float& chain = to_odd ? odd[i] : sum[i];
      chain = __fmaf_rn(w, work.x[from * Shape::kStride + column], chain);
    }
  }
  if (kBug != RouterBug::kTwoChains) return;
  for (int32_t i = 0; i < Shape::kTokensOfTile; ++i) sum[i] = __fadd_rn(sum[i], odd[i]);
}

template <RouterBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1) logits_kernel(const Work work) {
  GPU_SHARED(float, sums, Shape::kSegments* Shape::kTokensOfTile* Shape::kTile);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t segment = thread / Shape::kTile;
  const int32_t column = thread % Shape::kTile;
  const int32_t output = static_cast<int32_t>(blockIdx.x) * Shape::kTile + column;
  const auto place = [&](int32_t of_segment, int32_t token) {
    const int32_t of = kBug == RouterBug::kSumsOfOneToken ? 0 : token;
    return (of_segment * Shape::kTokensOfTile + of) * Shape::kTile + column;
  };
  for (int32_t first = 0; first < Shape::kTokens; first += Shape::kTokensOfTile) {
    float sum[Shape::kTokensOfTile] = {};
    multiply<kBug>(work, first, output, segment, sum);
    for (int32_t i = 0; i < Shape::kTokensOfTile; ++i) sums[place(segment, i)] = sum[i];
    if (kBug != RouterBug::kNoBarrierBeforeFold) __syncthreads();
    const int32_t token = first + segment;  // `segment` numbers tokens from here on
    const bool has_token = token < Shape::kTokens || kBug == RouterBug::kUnmaskedTokens;
    const bool has_output = output < Shape::kExperts || kBug == RouterBug::kUnmaskedOutputs;
    if (segment < Shape::kTokensOfTile && has_token && has_output) {
      float s[Shape::kSegments];
      for (int32_t i = 0; i < Shape::kSegments; ++i) s[i] = sums[place(i, segment)];
      const float low = __fadd_rn(s[0], s[1]);
      work.logits[token * Shape::kExperts + output] = kBug == RouterBug::kFoldInOrder
                                                          ? __fadd_rn(__fadd_rn(low, s[2]), s[3])
                                                          : __fadd_rn(low, __fadd_rn(s[2], s[3]));
    }
    if (kBug != RouterBug::kNoBarrierBeforeReuse) __syncthreads();
  }
}

// Returns the next chosen expert that is not `taken`: bit i is expert 32 i + lane.
template <RouterBug kBug>
__device__ __forceinline__ int32_t next_expert(const float* logits, uint32_t taken) {
  constexpr int32_t kExperts = kBug == RouterBug::kExpertsOfOneRound ? kLanes : Shape::kExperts;
  constexpr bool kTurned = kBug == RouterBug::kHigherIdFirst;
  const auto lane = static_cast<int32_t>(threadIdx.x);
  uint64_t best = 0;
  for (int32_t i = 0; kLanes * i + lane < kExperts; ++i) {
    if ((taken >> i & 1U) != 0) continue;
    const int32_t id = kLanes * i + lane;
    best = cuda::higher_rank(best, cuda::rank_of(logits[id], kTurned ? kExperts - 1 - id : id));
  }
  const int32_t id = cuda::index_of(cuda::highest_of_warp(best));
  return kTurned ? kExperts - 1 - id : id;
}

template <RouterBug kBug>
__global__ void __launch_bounds__(kLanes, 1) choose_kernel(const Work work) {
  GPU_SHARED(float, weights, Shape::kTopK);
  GPU_SHARED(float, total, 1);
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const auto row = static_cast<int32_t>(blockIdx.x);
  const float* const logits = work.logits + row * Shape::kExperts;
  float* const ids = work.ids + row * Shape::kTopK;
  constexpr int32_t kTopK = Shape::kTopK - (kBug == RouterBug::kOneChosenLess ? 1 : 0);
  uint32_t taken = 0;
  float top = 0;
  for (int32_t j = 0; j < kTopK; ++j) {
    const int32_t id = next_expert<kBug>(logits, taken);
    if (j == 0 && kBug != RouterBug::kTopNotTakenOff) top = logits[id];
    const int32_t bit = kBug == RouterBug::kTakenNotKept ? 0 : id / kLanes;
    if (id % kLanes == lane) taken |= 1U << bit;
    if (kBug == RouterBug::kIdsByRank && lane == 0) ids[j] = static_cast<float>(id);
  }
  int32_t before = 0;
  for (int32_t i = 0; kLanes * i < Shape::kExperts; ++i) {
    const uint32_t own = taken >> i & 1U;
    const auto all = static_cast<uint32_t>(
        __reduce_add_sync(cuda::kAllLanes, static_cast<int32_t>(own << lane)));
    const int32_t place = before + __popc(all & ((1U << lane) - 1));
    before += __popc(all);
    if (own == 0) continue;
    const int32_t id = kLanes * i + lane;
    if (kBug != RouterBug::kIdsByRank) ids[place] = static_cast<float>(id);
    weights[place] = cuda::exp_of(__fsub_rn(logits[id], top));
  }
  if (kBug != RouterBug::kNoSyncBeforeSum) __syncwarp();
  float sum = 0;
  if (lane == 0) {
    for (int32_t j = 0; j < kTopK; ++j) sum = __fadd_rn(sum, weights[j]);
    total[0] = sum;
  }
  __syncwarp();
  if (kBug != RouterBug::kSumNotShared) sum = total[0];
  for (int32_t j = lane; j < kTopK; j += kLanes) {
    work.weights[row * Shape::kTopK + j] = __fdiv_rn(weights[j], sum);
  }
}

template <RouterBug kBug>
void start(const Work& work) {
  constexpr int32_t kBlocks = (Shape::kExperts + Shape::kTile - 1) / Shape::kTile;
  gpu::launch(
      nullptr, {.blocks_x = kBlocks, .threads = Shape::kThreads}, logits_kernel<kBug>, work);
  gpu::launch(nullptr, {.blocks_x = Shape::kTokens, .threads = kLanes}, choose_kernel<kBug>, work);
}

}  // namespace

std::vector<float> run_router(RouterBug bug,
                              const std::vector<float>& x,
                              const std::vector<float>& w) {
  constexpr size_t kLogits = size_t{Shape::kTokens + 1} * Shape::kExperts;
  constexpr size_t kChosen = size_t{Shape::kTokens} * Shape::kTopK;
  std::vector<float> out(kLogits + 2 * kChosen, -1.0F);
  const Work work{.x = x.data(),
                  .w = w.data(),
                  .logits = out.data(),
                  .ids = out.data() + kLogits,
                  .weights = out.data() + kLogits + kChosen};
  with_bug<RouterBug::kSumNotShared>(bug, [&]<RouterBug kBug>() { start<kBug>(work); });
  return out;
}

}  // namespace sluice::kernels::test
