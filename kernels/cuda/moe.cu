// SPDX-License-Identifier: Apache-2.0
// Routing, placement and combining of kernels/moe.h, with the CPU's bits; gemm*.cu have the layers.
#include "kernels/moe.h"

#include "engine/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/order.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {

namespace ptx = gpu::ptx;

namespace {

constexpr int32_t kLanes = 32;
constexpr int32_t kSumLanes = 16;
static_assert(kMaxExperts <= kLanes * kLanes);  // a lane's experts are the bits of a word

// Returns the expert chosen next among those that the lanes have not `taken`: bit i is expert
// 32 i + lane. A NaN is chosen only if it comes first, as on the CPU.
__device__ __forceinline__ int32_t next_expert(const float* logits, int32_t n, uint32_t taken) {
  uint64_t best = 0;
  int32_t lowest = INT32_MAX;
  const auto lane = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = 0; kLanes * i + lane < n; ++i) {
    if ((taken >> i & 1U) != 0) continue;
    const int32_t id = kLanes * i + lane;
    lowest = id < lowest ? id : lowest;
    const uint64_t rank = rank_of(logits[id], id);
    if (magnitude_bits(logits[id]) <= kInfinityBits && rank > best) best = rank;
  }
  best = highest_of_warp(best);
  lowest = INT32_MAX - static_cast<int32_t>(
                           __reduce_max_sync(kAllLanes, static_cast<uint32_t>(INT32_MAX - lowest)));
  return magnitude_bits(logits[lowest]) > kInfinityBits ? lowest : index_of(best);
}

// Gives every lane the sum of term(i), i in [0, n), in 16 lanes folded by halves.
template <typename Term>
__device__ __forceinline__ float sum_in_lanes(int32_t n, Term term) {
  GPU_SHARED(float, total, 1);
  const auto lane = static_cast<int32_t>(threadIdx.x);
  if (lane < kSumLanes) {
    float sum = 0;
    for (int32_t i = lane; i < n; i += kSumLanes) sum = __fadd_rn(sum, term(i));
    sum = sum_of_sixteen(sum, kHalfWarp);
    if (lane == 0) total[0] = sum;
  }
  __syncwarp();
  return total[0];
}

// Fills the scores of a row's experts, and what their choice compares.
__device__ __forceinline__ void score_experts(const MoeRouteArgs& args,
                                              const float* logits,
                                              float* scores,
                                              float* values) {
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const bool is_softmax = args.router.score == RouterScore::kSoftmax;
  float top = 0;
  float sum = 1;
  if (is_softmax) {
    top = logits[next_expert(logits, args.num_experts, 0)];
    sum = sum_in_lanes(args.num_experts,
                       [&](int32_t i) { return exp_of(__fsub_rn(logits[i], top)); });
  }
  for (int32_t e = lane; e < args.num_experts; e += kLanes) {
    const float score =
        is_softmax ? __fdiv_rn(exp_of(__fsub_rn(logits[e], top)), sum) : sigmoid_of(logits[e]);
    scores[e] = score;
    values[e] = args.choice_bias == nullptr ? score : __fadd_rn(score, args.choice_bias[e]);
  }
  __syncwarp();
}

// Takes the groups that are worth least by the router's rule out of the choice; a lane has a group.
__device__ __forceinline__ void drop_groups(const MoeRouteArgs& args, float* values) {
  GPU_SHARED(float, worth, kMaxExpertGroups);
  const float least = -INFINITY;
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const int32_t num_groups = args.router.num_groups;
  const int32_t size = args.num_experts / num_groups;
  float own = 0;
  if (lane < num_groups) {
    float first = least;
    float second = least;
    for (int32_t e = lane * size; e < (lane + 1) * size; ++e) {
      if (values[e] > first) {
        second = first;
        first = values[e];
      } else if (values[e] > second) {
        second = values[e];
      }
    }
    own = args.router.group_rule == GroupRule::kTwoBest ? __fadd_rn(first, second) : first;
    worth[lane] = own;
  }
  __syncwarp();
  if (lane < num_groups) {
    int32_t num_better = 0;
    for (int32_t h = 0; h < num_groups; ++h) {
      num_better += worth[h] > own || (worth[h] == own && h < lane) ? 1 : 0;
    }
    for (int32_t e = lane * size; e < (lane + 1) * size; ++e) {
      if (num_better >= args.router.groups_kept) values[e] = least;
    }
  }
  __syncwarp();
}

// Returns what the weights of the chosen experts, each lane's own in order of id, are divided by.
__device__ __forceinline__ float weight_sum(const MoeRouteArgs& args,
                                            const float* logits,
                                            const float* weights,
                                            float top) {
  GPU_SHARED(float, chosen_sum, 1);
  const bool by_logit = chooses_by_logit(args);
  if (!args.router.normalize) {
    if (!by_logit) return 1;
    return sum_in_lanes(args.num_experts,
                        [&](int32_t i) { return exp_of(__fsub_rn(logits[i], top)); });
  }
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int32_t j = 0; j < args.top_k; ++j) sum = __fadd_rn(sum, weights[j]);
    if (!by_logit) {
      sum = __fadd_rn(sum, args.router.epsilon);
      if (sum < args.router.floor) sum = args.router.floor;
    }
    chosen_sum[0] = sum;
  }
  __syncwarp();
  return chosen_sum[0];
}

// RouterScore::kOneByOne: scores expert `id`, which is chosen next, among those near it that were
// not chosen before; marks it as chosen.
__device__ __forceinline__ void score_one(const MoeRouteArgs& args,
                                          const float* logits,
                                          int32_t id,
                                          float* scores,
                                          float* were_chosen) {
  const float top = logits[id];
  const float sum = sum_in_lanes(args.num_experts, [&](int32_t i) {
    const float size = __int_as_float(static_cast<int32_t>(magnitude_bits(logits[i])));
    const float distance = __fdiv_rn(__fsub_rn(top, logits[i]), higher_of(size, top));
    const bool is_near = were_chosen[i] == 0 && !(distance > args.router.spread);
    return is_near ? exp_of(__fsub_rn(logits[i], top)) : 0.0F;
  });
  if (threadIdx.x == 0) {
    scores[id] = __fdiv_rn(1.0F, sum);
    were_chosen[id] = 1;
  }
  __syncwarp();
}

// Routes a row by one warp. kOneByOne: by that score.
template <bool kOneByOne>
__global__ void __launch_bounds__(kLanes, 1)
    moe_route_kernel(const __grid_constant__ MoeRouteArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  GPU_SHARED(float, weights, kMaxExperts);
  GPU_SHARED(float, scores, kMaxExperts);
  GPU_SHARED(float, sums, kMaxExperts);  // with the choice bias; one by one: who was chosen
  const float* const logits = args.logits + int64_t{blockIdx.x} * args.num_experts;
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const bool by_logit = chooses_by_logit(args);
  if constexpr (kOneByOne) {
    for (int32_t e = lane; e < args.num_experts; e += kLanes) sums[e] = 0;
    __syncwarp();
  } else if (!by_logit) {
    score_experts(args, logits, scores, sums);
    if (args.router.num_groups > 0) drop_groups(args, sums);
  }
  const float* const values = by_logit || kOneByOne ? logits : sums;
  uint32_t taken = 0;
  float top = 0;
  for (int32_t j = 0; j < args.top_k; ++j) {
    const int32_t id = next_expert(values, args.num_experts, taken);
    if (j == 0) top = logits[id];
    if constexpr (kOneByOne) score_one(args, logits, id, scores, sums);
    if (id % kLanes == lane) taken |= 1U << (id / kLanes);
  }
  // Turns bits into lists in the order of ids.
  int32_t* const ids = args.ids + int64_t{blockIdx.x} * args.top_k;
  int32_t before = 0;
  for (int32_t i = 0; kLanes * i < args.num_experts; ++i) {
    const uint32_t own = taken >> i & 1U;
    const auto all =
        static_cast<uint32_t>(__reduce_add_sync(kAllLanes, static_cast<int32_t>(own << lane)));
    const int32_t place = before + __popc(all & ((1U << lane) - 1));
    before += __popc(all);
    if (own == 0) continue;
    const int32_t id = kLanes * i + lane;
    ids[place] = id;
    weights[place] = by_logit ? exp_of(__fsub_rn(logits[id], top)) : scores[id];
  }
  __syncwarp();
  const float sum = weight_sum(args, logits, weights, top);
  float* const out = args.weights + int64_t{blockIdx.x} * args.top_k;
  for (int32_t j = lane; j < args.top_k; j += kLanes) {
    const float weight = __fmul_rn(__fdiv_rn(weights[j], sum), args.router.scale);
    out[j] = args.expert_scales == nullptr ? weight
                                           : __fmul_rn(weight, args.expert_scales[ids[j]]);
  }
}

// Warps of the placement; each has a share of the pairs, in order.
constexpr int32_t kPlaceWarps = 16;
constexpr int32_t kPlaceThreads = kPlaceWarps * kLanes;

// Returns the sum of the values of this lane and the lanes before it.
__device__ __forceinline__ int32_t sum_up_to_lane(int32_t value) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  for (int32_t step = 1; step < kLanes; step *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

// Turns each expert's number of rows into its first row, and lists experts with rows, by one warp.
__device__ __forceinline__ void begin_rows(const ExpertRows& experts, int32_t* first) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  int32_t num_rows = 0;
  int32_t num_chosen = 0;
  for (int32_t begin = 0; begin < experts.num_experts; begin += kLanes) {
    const int32_t expert = begin + lane;
    const bool exists = expert < experts.num_experts;
    const int32_t count = exists ? first[expert] : 0;
    const int32_t rows = (count + kActivationRows - 1) / kActivationRows * kActivationRows;
    const int32_t chosen = count > 0 ? 1 : 0;
    const int32_t row = num_rows + sum_up_to_lane(rows) - rows;
    const int32_t place = num_chosen + sum_up_to_lane(chosen) - chosen;
    if (exists) {
      first[expert] = row;
      experts.first[expert] = row;
      experts.count[expert] = count;
    }
    if (chosen != 0) experts.chosen[place] = expert;
    num_rows += __reduce_add_sync(kAllLanes, rows);
    num_chosen += __reduce_add_sync(kAllLanes, chosen);
  }
  if (lane == 0) *experts.num_chosen = num_chosen;
}

// Counting sort by one block: counts pairs by warp and expert, sums up, then places the pairs.
__global__ void __launch_bounds__(kPlaceThreads, 1)
    place_rows_kernel(const __grid_constant__ PlaceRowsArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  GPU_DYN_SHARED_ARRAY(uint32_t, shared);  // [kPlaceWarps][experts] counts, [experts] first
  const int32_t num_experts = args.experts.num_experts;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread / kLanes;
  const int32_t lane = thread % kLanes;
  uint32_t* const counts = shared + warp * num_experts;
  auto* const first = reinterpret_cast<int32_t*>(shared + kPlaceWarps * num_experts);
  const int32_t share = (args.num_pairs + kPlaceWarps - 1) / kPlaceWarps;
  const int32_t begin = warp * share;
  const int32_t end = begin + share < args.num_pairs ? begin + share : args.num_pairs;
  for (int32_t e = lane; e < num_experts; e += kLanes) counts[e] = 0;
  __syncwarp();
  for (int32_t i = begin + lane; i < end; i += kLanes) gpu::shared_add(&counts[args.ids[i]], 1U);
  __syncthreads();
  for (int32_t e = thread; e < num_experts; e += kPlaceThreads) {
    uint32_t before = 0;
    for (int32_t w = 0; w < kPlaceWarps; ++w) {
      uint32_t& count = shared[w * num_experts + e];
      const uint32_t own = count;
      count = before;
      before += own;
    }
    first[e] = static_cast<int32_t>(before);
  }
  __syncthreads();
  if (warp == 0) begin_rows(args.experts, first);
  __syncthreads();
  for (int32_t i = begin; i < end; i += kLanes) {
    const bool exists = i + lane < end;
    const int32_t expert = exists ? args.ids[i + lane] : -1;
    const uint32_t same = __match_any_sync(kAllLanes, static_cast<uint32_t>(expert));
    const int32_t before = __popc(same & ((1U << lane) - 1));
    if (exists) {
      args.rows[i + lane] = first[expert] + static_cast<int32_t>(counts[expert]) + before;
    }
    __syncwarp();
    if (exists && before == 0) counts[expert] += static_cast<uint32_t>(__popc(same));
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kRowThreads, 1)
    moe_combine_kernel(const __grid_constant__ MoeCombineArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const int64_t first = int64_t{blockIdx.x} * args.top_k;
  float* const x = args.x + blockIdx.x * args.x_stride;
  for_elements(args.n, [&](int32_t i) {
    float sum = args.adds ? x[i] : 0.0F;
    for (int64_t j = first; j < first + args.top_k; ++j) {
      sum = __fmaf_rn(args.y[args.rows[j] * args.y_stride + i], args.weights[j], sum);
    }
    x[i] = sum;
  });
}

}  // namespace

void launch_moe_route(Stream stream, const MoeRouteArgs& args) {
  CHECK(args.top_k >= 1 && args.top_k <= args.num_experts && args.num_experts <= kMaxExperts);
  CHECK(args.router.num_groups <= kMaxExpertGroups);
  gpu::launch(stream,
              {.blocks_x = args.num_rows,
               .threads = kLanes,
               .overlaps = overlaps(LaunchKind::kRows, args.num_rows)},
              args.router.score == RouterScore::kOneByOne ? moe_route_kernel<true>
                                                          : moe_route_kernel<false>,
              args);
}

void launch_place_rows(Stream stream, const PlaceRowsArgs& args) {
  const int64_t num_experts = args.experts.num_experts;
  CHECK(num_experts >= 1 && num_experts <= kMaxExperts);
  gpu::launch(stream,
              {.threads = kPlaceThreads,
               .shared_bytes = (kPlaceWarps + 1) * num_experts * int64_t{sizeof(uint32_t)},
               .overlaps = overlaps(LaunchKind::kRows, args.num_pairs)},
              place_rows_kernel,
              args);
}

void launch_moe_combine(Stream stream, const MoeCombineArgs& args) {
  gpu::launch(stream, piecewise(args.num_rows, args.n), moe_combine_kernel, args);
}

}  // namespace sluice::kernels::cuda
