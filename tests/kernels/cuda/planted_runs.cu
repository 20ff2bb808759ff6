// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted_ring.h"
#include "tests/kernels/cuda/planted_segments.h"

namespace sluice::kernels::test {
namespace {

using gpu::TensorMap;
namespace ptx = gpu::ptx;
using Shape = SegmentsShape;

constexpr int kWeightCopier = kRingConsumers;
constexpr int kXCopier = kRingConsumers + 32;
constexpr int kThreads = kRingConsumers + 64;
constexpr int kRun = 9;  // segments of a block: two tiles are cut, one is whole
constexpr int kUnits = Shape::kTiles * Shape::kSegments;
constexpr int kRuns = (kUnits + kRun - 1) / kRun;

struct alignas(1024) Memory {
  SegmentsRing ring;
  float four[4][kRingConsumers];
};

// The outputs are two layers', the first of which has a tile that is not full. `parts`: each
// layer's [segment][token][output].
constexpr int kLayers = 2;
constexpr int kLayerOutputs[kLayers] = {72, 64};
constexpr int kFirstTiles = 2;  // tiles of the first layer

struct Work {
  TensorMap x;
  TensorMap w[kLayers];
  float* parts[kLayers];
  float* out[kLayers];  // in rows of both layers
  uint32_t* arrivals;   // each run's warps'
};

// A tile's layer, and its first output there.
struct Place {
  int layer;
  int output;
};

__device__ __forceinline__ Place place_of(int tile) {
  const int layer = tile < kFirstTiles ? 0 : 1;
  return {layer, (tile - layer * kFirstTiles) * Shape::kTileOutputs};
}

__device__ __forceinline__ int outputs_of(int layer) {
  return layer == 0 ? kLayerOutputs[0] : kLayerOutputs[1];
}

// Calls f(tile, begin, end) for each tile that the block's run has segments of.
template <RunsBug kBug, typename F>
__device__ __forceinline__ void for_run(F f) {
  const int first = static_cast<int>(blockIdx.x) * kRun;
  int last = first + kRun < kUnits ? first + kRun : kUnits;
  if (kBug == RunsBug::kRunsOverlap && blockIdx.x == 1) ++last;
  for (int unit = first; unit < last;) {
    const int tile = unit / Shape::kSegments;
    const int begin = unit % Shape::kSegments;
    const int left = last - tile * Shape::kSegments;
    const int end = left < Shape::kSegments ? left : Shape::kSegments;
    f(tile, begin, end);
    unit += end - begin;
  }
}

template <RunsBug kBug, typename F>
__device__ __forceinline__ void copy(Memory& memory, F load) {
  RingCursor at;
  for_run<kBug>([&](int tile, int begin, int end) {
    for (int segment = begin; segment < end; ++segment, at.advance()) {
      ptx::mbar_wait(&memory.ring.empty[at.stage], at.parity ^ 1);
      load(tile, Shape::first_column(segment), at.stage);
    }
  });
}

template <RunsBug kBug>
__device__ __forceinline__ void copy_weights(Memory& memory, const Work& work) {
  copy<kBug>(memory, [&](int tile, int column, int stage) {
    ptx::mbar_arrive_expect_tx(&memory.ring.full[stage], kRingWeightBytes);
    const Place place = place_of(tile);
    ptx::tma_load_2d(
        memory.ring.w[stage], &work.w[place.layer], column, place.output, &memory.ring.full[stage]);
  });
}

template <RunsBug kBug>
__device__ __forceinline__ void copy_x(Memory& memory, const Work& work) {
  copy<kBug>(memory, [&](int, int column, int stage) {
    ptx::mbar_arrive_expect_tx(&memory.ring.full[stage], kRingXBytes);
    ptx::tma_load_2d(memory.ring.x[stage], &work.x, column, 0, &memory.ring.full[stage]);
  });
}

// d = the segment's products.
template <RunsBug kBug>
__device__ __forceinline__ void multiply(Memory& memory,
                                         const RingCursor& at,
                                         int segment,
                                         float (&d)[4]) {
  ptx::mbar_wait(&memory.ring.full[at.stage], at.parity);
  const bool is_first = threadIdx.x % 32 == 0;
  if (kBug == RunsBug::kReleaseBeforeWait && is_first)
    ptx::mbar_arrive(&memory.ring.empty[at.stage]);
  issue_steps(memory.ring, at.stage, 2 * Shape::num_groups(segment), d);
  ptx::wgmma_wait<0>();
  ptx::fence_registers(d);
  if (kBug != RunsBug::kReleaseBeforeWait && is_first)
    ptx::mbar_arrive(&memory.ring.empty[at.stage]);
}

// Calls f(output, token, i) for a thread's d[i] that the layer has.
template <typename F>
__device__ __forceinline__ void for_sums(const Place& place, F f) {
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = 0; i < 4; ++i) {
    const int output = place.output + thread / 32 * 16 + thread % 32 / 4 + i / 2 * 8;
    const int token = thread % 4 * 2 + i % 2;
    if (output < outputs_of(place.layer)) f(output, token, i);
  }
}

__device__ __forceinline__ int part_at(int layer, int segment, int token, int output) {
  return (segment * Shape::kTokens + token) * outputs_of(layer) + output;
}

// The sums that wait for the right half of their subtree.
struct Waiting {
  float one[4];
  float two[4];
};

// Joins the sums of `segment` of [begin, end) to waiting sums. Returns the width of their subtree,
// which starts at `first`, or 0 if it waits itself.
template <RunsBug kBug>
__device__ __forceinline__ int grow(
    Memory& memory, Waiting& waiting, int segment, int begin, int end, float (&d)[4], int& first) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int column = kBug == RunsBug::kFourOfTheLane ? thread % 32 : thread;
  first = segment;
  for (int width = 1; width < Shape::kSegments; width *= 2) {
    const bool is_right = (first & width) != 0;
    const bool has_left = first - width >= begin;
    const auto word = [&](int i) -> float& {
      return width == 1 ? waiting.one[i] : width == 2 ? waiting.two[i] : memory.four[i][column];
    };
    if (is_right && has_left) {
      for (int i = 0; i < 4; ++i) d[i] = __fadd_rn(word(i), d[i]);
      first -= width;
      continue;
    }
    if (is_right || first + 2 * width > end) return width;
    for (int i = 0; i < 4; ++i) word(i) = d[i];
    return 0;
  }
  return Shape::kSegments;
}

// Whether a run begins after the first of the tile's segments [first, first + width).
__device__ __forceinline__ bool is_cut(int tile, int first, int width) {
  for (int i = first + 1; i < first + width; ++i) {
    if ((tile * Shape::kSegments + i) % kRun == 0) return true;
  }
  return false;
}

__device__ __forceinline__ float join(
    const Work& work, int tile, int token, int output, int layer) {
  float s[Shape::kSegments];
  for (int i = 0; i < Shape::kSegments; ++i) {
    s[i] = work.parts[layer][part_at(layer, i, token, output)];
  }
  for (int width = 1; width < Shape::kSegments; width *= 2) {
    for (int i = 0; i < Shape::kSegments; i += 2 * width) {
      if (is_cut(tile, i, 2 * width)) s[i] = __fadd_rn(s[i], s[i + width]);
    }
  }
  return s[0];
}

// Tells all lanes of a warp whether theirs is the last run to arrive with its part of the tile.
template <RunsBug kBug>
__device__ __forceinline__ bool comes_last(const Work& work, int tile) {
  constexpr uint32_t kAllLanes = 0xFFFFFFFFU;
  const int first = tile * Shape::kSegments / kRun;
  const int last = (tile * Shape::kSegments + Shape::kSegments - 1) / kRun;
  const auto arrivals = static_cast<uint32_t>(last - first + 1);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint32_t is_last = 0;
  if (kBug != RunsBug::kNoSyncBeforeArrival) __syncwarp();
  if (threadIdx.x % 32 == 0) {
    if (kBug != RunsBug::kNoFenceBeforeArrival) ptx::fence_device();
    uint32_t* const counter = work.arrivals + first * kRingConsumerWarps + warp;
    is_last = gpu::arrive_last(counter, arrivals) ? 1 : 0;
    if (kBug != RunsBug::kNoFenceBehindArrival) ptx::fence_device();
  }
  is_last = __reduce_max_sync(kAllLanes, is_last);
  if (kBug != RunsBug::kNoSyncBehindArrival) __syncwarp();
  if (kBug == RunsBug::kJoinedByAll) return true;
  return kBug == RunsBug::kJoinedByTheFirst ? is_last == 0 : is_last != 0;
}

template <RunsBug kBug>
__device__ __forceinline__ void multiply_run(Memory& memory, const Work& work) {
  RingCursor at;
  Waiting waiting{};
  for_run<kBug>([&](int tile, int begin, int end) {
    if (kBug == RunsBug::kRingRestarts) at = {};
    float d[4];
    const Place place = place_of(tile);
    for (int segment = begin; segment < end; ++segment, at.advance()) {
      multiply<kBug>(memory, at, segment, d);
      int first = 0;
      const int width = grow<kBug>(memory, waiting, segment, begin, end, d, first);
      if (width == 0) continue;
      for_sums(place, [&](int output, int token, int i) {
        if (end - begin == Shape::kSegments) {
          work.out[place.layer][token * Shape::kOutputs + output] = d[i];
        } else {
          work.parts[place.layer][part_at(place.layer, first, token, output)] = d[i];
        }
      });
    }
    if (end - begin == Shape::kSegments) return;
    if (!comes_last<kBug>(work, tile)) return;
    for_sums(place, [&](int output, int token, int) {
      work.out[place.layer][token * Shape::kOutputs + output] =
          join(work, tile, token, output, place.layer);
    });
  });
}

template <RunsBug kBug>
__global__ void __launch_bounds__(kThreads, 1) runs_kernel(const __grid_constant__ Work work) {
  GPU_DYN_SHARED(Memory, memory);
  ptx::start_next_launch();
  if (threadIdx.x == 0) {
    init_ring(memory.ring, kBug == RunsBug::kOneCopier ? 1 : 2);
    ptx::fence_mbar_init();
  }
  __syncthreads();
  if (threadIdx.x == kWeightCopier) {
    copy_weights<kBug>(memory, work);
    if (kBug == RunsBug::kEndWithoutWait) return;
  }
  if (kBug == RunsBug::kStoreBeforeWait && threadIdx.x < kRingConsumers) {
    multiply_run<kBug>(memory, work);
  }
  ptx::wait_for_launches();
  if (kBug != RunsBug::kStoreBeforeWait && threadIdx.x < kRingConsumers) {
    multiply_run<kBug>(memory, work);
  }
  if (threadIdx.x == kXCopier) copy_x<kBug>(memory, work);
}

template <RunsBug kBug>
void start(const Work& work) {
  gpu::launch(
      nullptr,
      {.blocks_x = kRuns, .threads = kThreads, .shared_bytes = sizeof(Memory), .overlaps = true},
      runs_kernel<kBug>,
      work);
}

}  // namespace

std::vector<float> run_runs(RunsBug bug,
                            const std::vector<uint16_t>& x,
                            const std::vector<uint16_t>& w) {
  std::vector<float> out(static_cast<size_t>(Shape::kTokens * Shape::kOutputs), -1.0F);
  std::vector<float> parts(out.size() * Shape::kSegments, -1.0F);
  const auto second = w.begin() + kLayerOutputs[0] * Shape::kK;
  const std::vector<uint16_t> weights[kLayers] = {{w.begin(), second}, {second, w.end()}};
  std::vector<uint32_t> arrivals(static_cast<size_t>(kRuns * kRingConsumerWarps));
  Work work{.x = segments_map(x, Shape::kTokens, Shape::kTokens),
            .w = {},
            .parts = {parts.data(),
                      parts.data() + Shape::kSegments * Shape::kTokens * kLayerOutputs[0]},
            .out = {out.data(), out.data() + kLayerOutputs[0]},
            .arrivals = arrivals.data()};
  for (int i = 0; i < kLayers; ++i) {
    work.w[i] = segments_map(weights[i], kLayerOutputs[i], Shape::kTileOutputs);
  }
  with_bug<RunsBug::kJoinedByAll>(bug, [&]<RunsBug kBug>() { start<kBug>(work); });
  return out;
}

}  // namespace sluice::kernels::test
