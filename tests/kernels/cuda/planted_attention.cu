// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "tests/kernels/cuda/planted_attention.h"

namespace sluice::kernels::test {
namespace {

using Shape = AttentionShape;
using cuda::exp_of;
using cuda::higher_of;

constexpr int kThreads = 64;
constexpr uint32_t kAllLanes = 0xFFFFFFFFU;
constexpr float kLowest = -0x1.fffffep127F;
constexpr int32_t kState = Shape::kDim + 2;  // o, m, l
constexpr int32_t kPartitions = (Shape::kPosition + Shape::kRows) / Shape::kPartition + 1;
static_assert(Shape::kRows * 32 == kThreads && Shape::kPartition == 32, "a warp a row");
static_assert(Shape::kBlocks * Shape::kSlots == kPartitions * Shape::kPartition);

struct Work {
  const float* q;
  const float* k;
  const float* v;
  const int32_t* table;
  float* out;
  float* partials;  // [partition][row][kState]; null: one block walks
};

__device__ __forceinline__ int64_t slot_of(AttentionBug bug, const Work& work, int32_t key) {
  const int32_t of_table =
      bug == AttentionBug::kBlockOfTheFirstKey ? key / Shape::kPartition * Shape::kPartition : key;
  return (int64_t{work.table[of_table / Shape::kSlots]} * Shape::kSlots + key % Shape::kSlots) *
         Shape::kDim;
}

__device__ __forceinline__ bool sees(AttentionBug bug, int32_t row, int32_t key) {
  const int32_t position = Shape::kPosition + row;
  const int32_t window = Shape::kWindow + (bug == AttentionBug::kWindowOneEarly ? 1 : 0);
  const int32_t end = bug == AttentionBug::kUnmaskedTail
                          ? (position + Shape::kSlots) / Shape::kSlots * Shape::kSlots
                          : position + 1;
  return key > position - window && key < end;
}

__device__ __forceinline__ void merge(AttentionBug bug, float* state, const float* next) {
  const float m = higher_of(state[0], next[0]);
  const float keep = bug == AttentionBug::kNoRescale ? 1.0F : exp_of(__fsub_rn(state[0], m));
  const float add = exp_of(__fsub_rn(next[0], m));
  state[0] = m;
  for (int i = 1; i < 3; ++i) state[i] = __fmaf_rn(next[i], add, __fmul_rn(state[i], keep));
}

// Replaces the scores of a warp's row by its weights; returns m and l.
__device__ __forceinline__ void weigh(float* scores, int32_t row, float (*state)[2]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float score = scores[lane];
  float m = score;
  for (int half = 16; half >= 1; half /= 2) m = higher_of(m, __shfl_xor_sync(kAllLanes, m, half));
  const float weight = score == kLowest ? 0.0F : exp_of(__fsub_rn(score, m));
  float l = weight;
  for (int half = 16; half >= 1; half /= 2) l = __fadd_rn(l, __shfl_xor_sync(kAllLanes, l, half));
  scores[lane] = weight;
  if (lane == 0) {
    state[row][0] = m;
    state[row][1] = l;
  }
}

template <AttentionBug kBug>
__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const Work work) {
  GPU_SHARED(float, scores, Shape::kRows* Shape::kPartition);
  GPU_SHARED(float, states, Shape::kRows * 2);
  auto* const state = reinterpret_cast<float(*)[2]>(states);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const bool split = work.partials != nullptr;
  const int32_t first = split ? static_cast<int32_t>(blockIdx.x) : 0;
  const int32_t last = split ? first + 1 : kPartitions;
  const int32_t row = thread / Shape::kDim;  // the row of a thread with outputs
  const int32_t d = thread % Shape::kDim;
  const bool has_output = row < Shape::kRows;
  float merged[3] = {kLowest, 0, 0};  // m, l, o
  for (int32_t partition = first; partition < last; ++partition) {
    const int32_t begin = partition * Shape::kPartition;
    const bool overlaps = kBug == AttentionBug::kPartitionOverlaps && partition > 0;
    const int32_t key = begin + thread % 32 - (overlaps ? 1 : 0);
    float score = kLowest;
    if (sees(kBug, thread / 32, key)) {
      score = 0;
      const float* const k = work.k + slot_of(kBug, work, key);
      for (int i = 0; i < Shape::kDim; ++i) {
        score = __fmaf_rn(work.q[thread / 32 * Shape::kDim + i], k[i], score);
      }
    }
    // Each warp writes the other one's row, so that a barrier is needed.
    const int32_t turned = 1 - thread / 32;
    scores[thread / 32 * Shape::kPartition + thread % 32] = score;
    if (kBug != AttentionBug::kNoBarrierAfterScores) __syncthreads();
    weigh(scores + turned * Shape::kPartition, turned, state);
    if (kBug != AttentionBug::kNoBarrierAfterWeights) __syncthreads();
    if (has_output) {
      float next[3] = {state[row][0], state[row][1], 0};
      for (int32_t j = 0; j < Shape::kPartition; ++j) {
        const float weight = scores[row * Shape::kPartition + j];
        if (weight == 0) continue;
        next[2] = __fmaf_rn(
            weight, work.v[slot_of(kBug, work, begin + j - (overlaps ? 1 : 0)) + d], next[2]);
      }
      if (split) {
        const int32_t to = kBug == AttentionBug::kPartialOfTheNeighbour && partition == 2
                               ? partition - 1
                               : partition;
        float* const partial = work.partials + (to * Shape::kRows + row) * kState;
        partial[d] = next[2];
        if (d == 0) {
          partial[Shape::kDim] = next[0];
          partial[Shape::kDim + 1] = next[1];
        }
      } else {
        merge(kBug, merged, next);
      }
    }
    if (kBug != AttentionBug::kNoBarrierBeforeReuse) __syncthreads();
  }
  if (has_output && !split) work.out[row * Shape::kDim + d] = __fdiv_rn(merged[2], merged[1]);
}

template <AttentionBug kBug>
__global__ void __launch_bounds__(kThreads, 1) merge_kernel(const Work work) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread >= Shape::kRows * Shape::kDim) return;
  const int32_t row = thread / Shape::kDim;
  const int32_t d = thread % Shape::kDim;
  const int32_t partitions = kBug == AttentionBug::kMergeOneShort ? kPartitions - 1 : kPartitions;
  float merged[3] = {kLowest, 0, 0};
  for (int32_t i = 0; i < partitions; ++i) {
    const int32_t partition = kBug == AttentionBug::kMergeBackwards ? partitions - 1 - i : i;
    const float* const partial = work.partials + (partition * Shape::kRows + row) * kState;
    const float next[3] = {partial[Shape::kDim], partial[Shape::kDim + 1], partial[d]};
    merge(kBug, merged, next);
  }
  work.out[thread] = __fdiv_rn(merged[2], merged[1]);
}

template <AttentionBug kBug>
void start(Work work, float* partials) {
  gpu::launch(nullptr, {.threads = kThreads}, attention_kernel<kBug>, work);
  work.out += Shape::kRows * Shape::kDim;
  work.partials = partials;
  gpu::launch(
      nullptr, {.blocks_x = kPartitions, .threads = kThreads}, attention_kernel<kBug>, work);
  gpu::launch(nullptr, {.threads = kThreads}, merge_kernel<kBug>, work);
}

}  // namespace

std::vector<float> run_attention(AttentionBug bug,
                                 const std::vector<float>& q,
                                 const std::vector<float>& k,
                                 const std::vector<float>& v,
                                 const std::vector<int32_t>& table) {
  std::vector<float> out(2 * Shape::kRows * Shape::kDim, -1.0F);
  std::vector<float> partials(kPartitions * Shape::kRows * kState, -1.0F);
  const Work work{.q = q.data(),
                  .k = k.data(),
                  .v = v.data(),
                  .table = table.data(),
                  .out = out.data(),
                  .partials = nullptr};
  with_bug<AttentionBug::kMergeOneShort>(
      bug, [&]<AttentionBug kBug>() { start<kBug>(work, partials.data()); });
  return out;
}

}  // namespace sluice::kernels::test
