// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted_attention.h"

namespace sluice::kernels::test {
namespace {

using gpu::TensorMap;
namespace ptx = gpu::ptx;
using Shape = ListShape;
using cuda::exp_of_difference;
using cuda::top_of;

constexpr int kWarps = Shape::kPartition / Shape::kTile;  // consumer warps, a tile each
constexpr int kConsumers = 32 * kWarps;
constexpr int kThreads = kConsumers + 32;
constexpr int kValueStages = 2;
constexpr int kTileBlocks = Shape::kTile / Shape::kSlots;
constexpr int kCodeBytes = Shape::kSlots * Shape::kDim;  // bytes of a cache block's codes
constexpr int kScaleBytes = Shape::kSlots * 4;
constexpr int kSlice = Shape::kDim / kWarps;  // d of a warp; the last warp's do not count
constexpr int kState = Shape::kDim + 2;       // o, m, l
constexpr int kPartials = 4;                  // partials of a share, the last one joined
constexpr uint32_t kAllLanes = 0xFFFFFFFFU;
constexpr float kLowest = -0x1.fffffep127F;
static_assert(Shape::kTile == 32, "a lane a key");
static_assert(Shape::kRows * kSlice <= 32 && Shape::kWidth <= Shape::kDim - kSlice);

struct Memory {
  alignas(128) int8_t k[kWarps][kTileBlocks * kCodeBytes];  // [block][d][slot]
  alignas(128) int8_t v[kValueStages][kTileBlocks * kCodeBytes];
  alignas(128) float scales[kWarps][kTileBlocks][32];  // K's scales, each block's at its own line
  float weights[kWarps][Shape::kRows][Shape::kTile];
  float tops[2][Shape::kRows][kWarps];
  float factors[Shape::kRows][kWarps];
  float sums[Shape::kRows][kWarps];
  ptx::Mbarrier k_full[kWarps];
  ptx::Mbarrier k_empty[kWarps];
  ptx::Mbarrier v_full[kValueStages];
  ptx::Mbarrier v_empty[kValueStages];
  int32_t blocks[Shape::kPartition / Shape::kSlots];
};

struct Work {
  const float* q;
  const int32_t* lengths;
  const int32_t* table;
  float* partials;
  float* out;
};

struct Maps {
  TensorMap k;
  TensorMap v;
  TensorMap scales;
};

struct Items {
  int begin;
  int end;
};

__device__ __forceinline__ int partitions_of(const Work& work, int request) {
  return (work.lengths[request] + Shape::kPartition - 1) / Shape::kPartition;
}

// Returns a request's items, which are its partitions.
__device__ __forceinline__ Items items_of(const Work& work, int request) {
  int begin = 0;
  for (int i = 0; i < request; ++i) begin += partitions_of(work, i);
  return {begin, begin + partitions_of(work, request)};
}

template <ListBug kBug>
__device__ __forceinline__ Items share_of(const Work& work, int index) {
  const int total = items_of(work, Shape::kRequests - 1).end;
  const int length = total / Shape::kShares;
  const int longer = total % Shape::kShares;
  const auto begin = [&](int i) { return i * length + (i < longer ? i : longer); };
  const bool late = kBug == ListBug::kShareOneLate && index == 2;
  return {begin(index) + (late ? 1 : 0), begin(index + 1)};
}

// Returns how many of a partition's tiles have a key.
__device__ __forceinline__ int tiles_of(const Work& work, int request, int partition) {
  const int keys = work.lengths[request] - partition * Shape::kPartition;
  return keys >= Shape::kPartition ? kWarps : (keys + Shape::kTile - 1) / Shape::kTile;
}

// Calls body(request, its items, the share's items of it) for each request of a share.
template <typename Body>
__device__ __forceinline__ void for_requests(const Work& work, Items share, const Body& body) {
  for (int request = 0; request < Shape::kRequests; ++request) {
    const Items items = items_of(work, request);
    const Items mine{share.begin > items.begin ? share.begin : items.begin,
                     share.end < items.end ? share.end : items.end};
    if (mine.begin < mine.end) body(request, items, mine);
  }
}

// The copying warp: its lanes look up a partition's blocks, lane 0 issues the copies.
template <ListBug kBug>
class Copies {
 public:
  __device__ __forceinline__ Copies(Memory& memory, const Maps& maps)
      : memory_(memory), maps_(maps) {}

  __device__ __forceinline__ void take(const Work& work, int request, int partition) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    constexpr int kBlocks = Shape::kPartition / Shape::kSlots;
    const int count = tiles_of(work, request, partition);
    if (lane < kBlocks) {
      const bool some =
          partition * Shape::kPartition + lane * Shape::kSlots < work.lengths[request];
      const int row = request * Shape::kTableStride;
      const int entry = partition * kBlocks + lane + (kBug == ListBug::kEntryOfTheNeighbour);
      memory_.blocks[lane] = some ? work.table[row + entry] : Shape::kBlocks;
    }
    if (kBug != ListBug::kNoSyncAfterTable) __syncwarp();
    if (lane == 0) {
      for (int tile = 0; tile < count; ++tile) copy_keys(tile);
      for (int tile = 0; tile < count; ++tile) copy_values(tile);
    }
    if (kBug != ListBug::kNoSyncBeforeTable) __syncwarp();
  }

 private:
  static constexpr int kStages = kBug == ListBug::kStageTooFew ? kWarps - 1 : kWarps;

  __device__ __forceinline__ void copy_keys(int tile) {
    const int stage = keys_ % kStages;
    ptx::mbar_wait(&memory_.k_empty[stage], keys_ / kStages % 2 ^ 1);
    constexpr uint32_t kBytes = kTileBlocks * (kCodeBytes + kScaleBytes);
    ptx::mbar_arrive_expect_tx(&memory_.k_full[stage], kBytes);
    for (int i = 0; i < kTileBlocks; ++i) {
      const int32_t at = memory_.blocks[tile * kTileBlocks + i];
      const int of_scales = kBug == ListBug::kScalesOfTheNeighbour ? kTileBlocks - 1 - i : i;
      const int32_t scales_at = memory_.blocks[tile * kTileBlocks + of_scales];
      ptx::tma_load_2d(memory_.k[stage] + i * kCodeBytes, &maps_.k, 0, at, &memory_.k_full[stage]);
      ptx::tma_load_2d(
          memory_.scales[stage][i], &maps_.scales, 0, scales_at, &memory_.k_full[stage]);
    }
    ++keys_;
  }

  __device__ __forceinline__ void copy_values(int tile) {
    const int stage = values_ % kValueStages;
    ptx::mbar_wait(&memory_.v_empty[stage], values_ / kValueStages % 2 ^ 1);
    ptx::mbar_arrive_expect_tx(&memory_.v_full[stage], kTileBlocks * kCodeBytes);
    for (int i = 0; i < kTileBlocks; ++i) {
      const int32_t at = memory_.blocks[tile * kTileBlocks + i];
      ptx::tma_load_2d(memory_.v[stage] + i * kCodeBytes, &maps_.v, 0, at, &memory_.v_full[stage]);
    }
    ++values_;
  }

  Memory& memory_;
  const Maps& maps_;
  int keys_ = 0;  // tiles copied so far
  int values_ = 0;
};

struct State {
  float m = kLowest;
  float l = 0;
  float o = 0;
};

__device__ __forceinline__ void join(State& state, const State& next) {
  const float m = top_of(state.m, next.m);
  const float keep = exp_of_difference(__fsub_rn(state.m, m));
  const float add = exp_of_difference(__fsub_rn(next.m, m));
  state = {m,
           __fmaf_rn(next.l, add, __fmul_rn(state.l, keep)),
           __fmaf_rn(next.o, add, __fmul_rn(state.o, keep))};
}

// A consumer warp: a lane has a key of the warp's tile, then a row and one of the warp's d.
template <ListBug kBug>
class Rows {
 public:
  __device__ __forceinline__ Rows(Memory& memory, const Work& work)
      : memory_(memory), work_(work) {}

  __device__ __forceinline__ void take(int request, Items items, Items mine) {
    const int index = static_cast<int>(blockIdx.x);
    State joined;
    for (int item = mine.begin; item < mine.end; ++item) {
      const State state = attend(request, item - items.begin);
      if (mine.begin == items.begin) {
        join(joined, state);
      } else {
        store(index, item - mine.begin, state);
      }
    }
    if (mine.begin != items.begin || !has_output()) return;
    if (mine.end == items.end) {
      work_.out[(request * Shape::kRows + row()) * Shape::kWidth + d()] =
          __fdiv_rn(joined.o, joined.l);
    } else {
      store(index, kPartials - 1, joined);
    }
  }

 private:
  static constexpr int kStages = kBug == ListBug::kStageTooFew ? kWarps - 1 : kWarps;

  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x / 32); }

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  __device__ __forceinline__ static int row() { return lane() / kSlice; }

  __device__ __forceinline__ static int d() { return warp() * kSlice + lane() % kSlice; }

  __device__ __forceinline__ static bool has_output() {
    return row() < Shape::kRows && d() < Shape::kWidth;
  }

  __device__ __forceinline__ static void release(ptx::Mbarrier* empty) {
    __syncwarp();
    if (lane() == 0) ptx::mbar_arrive(empty);
  }

  __device__ __forceinline__ void store(int share, int slot, const State& state) const {
    if (!has_output()) return;
    float* const partial =
        work_.partials + ((share * kPartials + slot) * Shape::kRows + row()) * kState;
    partial[d()] = state.o;
    if (d() != 0) return;
    partial[Shape::kDim] = state.m;
    partial[Shape::kDim + 1] = state.l;
  }

  __device__ __forceinline__ State attend(int request, int partition) {
    const int count = tiles_of(work_, request, partition);
    const bool mine = warp() < count;
    const int number = taken_ + warp();
    const int stage = number % kStages;
    float(&tops)[Shape::kRows][kWarps] = memory_.tops[kBug == ListBug::kOneOfTops ? 0 : turn_];
    turn_ ^= 1;
    float scores[Shape::kRows] = {};
    if (mine) {
      ptx::mbar_wait(&memory_.k_full[stage], number / kStages % 2);
      if (kBug == ListBug::kReleaseBeforeScores) release(&memory_.k_empty[stage]);
      score(request, partition * Shape::kPartition + warp() * Shape::kTile, stage, scores, tops);
      if (kBug != ListBug::kReleaseBeforeScores) release(&memory_.k_empty[stage]);
    }
    if (kBug != ListBug::kNoBarrierAfterTops) ptx::bar_sync(1, kConsumers);
    if (mine) weigh(scores, tops);
    if (kBug != ListBug::kNoBarrierAfterWeights) ptx::bar_sync(1, kConsumers);
    State state;
    for (int tile = 0; tile < count; ++tile, ++values_) weigh_values(tile, tops, state);
    taken_ += kBug == ListBug::kCountsWholePartitions ? kWarps : count;
    return state;
  }

  __device__ __forceinline__ void score(int request,
                                        int begin,
                                        int stage,
                                        float (&scores)[Shape::kRows],
                                        float (&tops)[Shape::kRows][kWarps]) {
    const int8_t* const k = memory_.k[stage] + lane() / Shape::kSlots * kCodeBytes;
    for (int r = 0; r < Shape::kRows; ++r) {
      const float* const q = work_.q + (request * Shape::kRows + r) * Shape::kDim;
      float sum = 0;
      for (int i = 0; i < Shape::kDim; ++i) {
        const auto code = static_cast<float>(k[i * Shape::kSlots + lane() % Shape::kSlots]);
        sum = __fmaf_rn(q[i], code, sum);
      }
      const bool seen = begin + lane() < work_.lengths[request];
      const float scale = memory_.scales[stage][lane() / Shape::kSlots][lane() % Shape::kSlots];
      scores[r] = seen ? __fmul_rn(sum, scale) : -__builtin_inff();
      float top = top_of(kLowest, scores[r]);
      for (int half = 16; half >= 1; half /= 2) {
        top = top_of(top, __shfl_xor_sync(kAllLanes, top, half));
      }
      if (lane() == 0) tops[r][warp()] = top;
    }
  }

  __device__ __forceinline__ void weigh(const float (&scores)[Shape::kRows],
                                        const float (&tops)[Shape::kRows][kWarps]) {
    for (int r = 0; r < Shape::kRows; ++r) {
      float before = kLowest;
      for (int w = 0; w < warp(); ++w) before = top_of(before, tops[r][w]);
      const float m = top_of(before, tops[r][warp()]);
      const float weight = exp_of_difference(__fsub_rn(scores[r], m));
      float sum = weight;
      for (int half = 16; half >= 1; half /= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, half));
      }
      memory_.weights[warp()][r][lane()] = weight;
      if (lane() != 0) continue;
      memory_.factors[r][warp()] = exp_of_difference(__fsub_rn(before, m));
      memory_.sums[r][warp()] = sum;
    }
  }

  __device__ __forceinline__ void weigh_values(int tile,
                                               const float (&tops)[Shape::kRows][kWarps],
                                               State& state) {
    const int stage = values_ % kValueStages;
    if (kBug == ListBug::kIdleWarpDoesNotRelease && warp() * kSlice >= Shape::kWidth) return;
    ptx::mbar_wait(&memory_.v_full[stage], values_ / kValueStages % 2);
    if (has_output()) {
      const float c = memory_.factors[row()][tile];
      state.m = top_of(state.m, tops[row()][tile]);
      state.l = __fmaf_rn(state.l, c, memory_.sums[row()][tile]);
      state.o = __fmul_rn(state.o, c);
      for (int j = 0; j < Shape::kTile; ++j) {
        const auto code = static_cast<float>(memory_.v[stage][j * Shape::kDim + d()]);
        state.o = __fmaf_rn(memory_.weights[tile][row()][j], code, state.o);
      }
    }
    release(&memory_.v_empty[stage]);
  }

  Memory& memory_;
  const Work& work_;
  int taken_ = 0;   // tiles of K taken
  int values_ = 0;  // tiles of V taken
  int turn_ = 0;
};

template <ListBug kBug>
__global__ void __launch_bounds__(kThreads, 1)
    list_kernel(const __grid_constant__ Maps maps, const Work work) {
  GPU_DYN_SHARED(Memory, memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kWarps; ++i) {
      ptx::mbar_init(&memory.k_full[i], 1);
      ptx::mbar_init(&memory.k_empty[i], 1);
    }
    for (int i = 0; i < kValueStages; ++i) {
      ptx::mbar_init(&memory.v_full[i], 1);
      ptx::mbar_init(&memory.v_empty[i], kWarps);
    }
    ptx::fence_mbar_init();
  }
  __syncthreads();
  const Items share = share_of<kBug>(work, static_cast<int>(blockIdx.x));
  if (threadIdx.x >= kConsumers) {
    Copies<kBug> copies(memory, maps);
    for_requests(work, share, [&](int request, Items items, Items mine) {
      for (int item = mine.begin; item < mine.end; ++item) {
        copies.take(work, request, item - items.begin);
      }
    });
    return;
  }
  Rows<kBug> rows(memory, work);
  for_requests(
      work, share, [&](int request, Items items, Items mine) { rows.take(request, items, mine); });
}

// Merges what a border between shares cuts, by a thread for each row and d.
template <ListBug kBug>
__device__ __forceinline__ void merge(const Work& work) {
  const auto thread = static_cast<int>(threadIdx.x);
  const Items head = share_of<kBug>(work, static_cast<int>(blockIdx.x));
  int request = 0;
  while (items_of(work, request).end <= head.end - 1) ++request;
  const Items items = items_of(work, request);
  const bool starts_here = items.begin >= head.begin;
  const bool ends_here = items.end <= head.end;
  if (ends_here || (!starts_here && kBug != ListBug::kMergedTwice)) return;
  if (thread >= Shape::kRows * Shape::kWidth) return;
  const int row = thread / Shape::kWidth;
  const int d = thread % Shape::kWidth;
  const auto partial = [&](int share, int slot) {
    const float* const p =
        work.partials + ((share * kPartials + slot) * Shape::kRows + row) * kState;
    return State{p[Shape::kDim], p[Shape::kDim + 1], p[d]};
  };
  const int first = static_cast<int>(blockIdx.x);
  State state = partial(first, kBug == ListBug::kJoinedInTheFirstSlot ? 0 : kPartials - 1);
  const int last = items.end - (kBug == ListBug::kPartialLeftOut ? 1 : 0);
  for (int share = first + 1, item = head.end; item < last; ++share) {
    const Items of = share_of<kBug>(work, share);
    for (; item < last && item < of.end; ++item) join(state, partial(share, item - of.begin));
  }
  work.out[(request * Shape::kRows + row) * Shape::kWidth + d] = __fdiv_rn(state.o, state.l);
}

template <ListBug kBug>
__global__ void __launch_bounds__(kConsumers, 1) merge_kernel(const Work work) {
  if (kBug == ListBug::kMergeLeavesEarly && threadIdx.x >= Shape::kRows * Shape::kWidth) return;
  if (kBug == ListBug::kMergeWritesEarly && blockIdx.x == 0 && threadIdx.x == 0) work.out[0] = 0;
  ptx::wait_for_launches();
  merge<kBug>(work);
}

// Returns a map with a row for each block of the cache, which is one box.
TensorMap blocks_map(const void* data, int bytes) {
  return gpu::make_tensor_map({.data = data,
                               .element_bytes = 1,
                               .rank = 2,
                               .sizes = {bytes, Shape::kBlocks},
                               .strides = {0, bytes},
                               .box = {bytes, 1},
                               .swizzle = gpu::Swizzle::kNone});
}

}  // namespace

std::vector<float> run_list(ListBug bug, const ListInputs& in) {
  std::vector<float> out(Shape::kRequests * Shape::kRows * Shape::kWidth, -1.0F);
  std::vector<float> partials(Shape::kShares * kPartials * Shape::kRows * kState, -1.0F);
  const Work work{.q = in.q.data(),
                  .lengths = in.lengths.data(),
                  .table = in.table.data(),
                  .partials = partials.data(),
                  .out = out.data()};
  const Maps maps{.k = blocks_map(in.k, kCodeBytes),
                  .v = blocks_map(in.v, kCodeBytes),
                  .scales = blocks_map(in.scales, kScaleBytes)};
  with_bug<ListBug::kMergedTwice>(bug, [&]<ListBug kBug>() {
    gpu::launch(nullptr,
                {.blocks_x = Shape::kShares, .threads = kThreads, .shared_bytes = sizeof(Memory)},
                list_kernel<kBug>,
                maps,
                work);
    gpu::launch(nullptr,
                {.blocks_x = Shape::kShares - 1, .threads = kConsumers, .overlaps = true},
                merge_kernel<kBug>,
                work);
  });
  return out;
}

}  // namespace sluice::kernels::test
