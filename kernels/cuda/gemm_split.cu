// SPDX-License-Identifier: Apache-2.0
// Linear layers by wgmma for few rows, on Hopper. The work is the segments of K of all tiles, in
// order. Blocks have equal runs of it, and a block's copying threads do not stop at tiles' ends, so
// that weights come from memory without a break. A run folds its segments of a tile as far as the
// tree goes. It finishes a tile that it has all of. Subtrees of other tiles go to the workspace
// [segments][tokens][outputs], each at its first segment, and the last run to arrive with its part
// of a tile joins them, in the tree's order, so that no bit depends on which run it is. Without a
// workspace runs are whole tiles.
//
// Layers that share x are one launch, whose tiles follow one another. A launch may overlap the one
// in front: no launch writes weights, so they are copied at once, and everything else waits.
#include <algorithm>

#include "kernels/cuda/gemm_ring.h"
#include "kernels/cuda/overlap.h"

namespace sluice::kernels::cuda {
namespace {

namespace ptx = gpu::ptx;

// Code for GPUs without wgmma does not use what is marked as maybe unused here.
[[maybe_unused]] constexpr int kWeightCopier = kConsumers;  // index of the thread
[[maybe_unused]] constexpr int kXCopier = kConsumers + 32;
constexpr int kThreads = kConsumers + 64;

// `four`: each thread's sums of four segments.
template <typename Sum, int kTokens, int kStages>
struct alignas(1024) Memory {
  Ring<kTokens, kStages> ring;
  Sum four[kTokens / 2][kConsumers];
};

// A run's segments of a tile; `tile` counts over all of the launch.
struct Part {
  int32_t tile;
  int32_t begin;
  int32_t end;
};

constexpr int kMostRuns = kMostArrivals / kConsumerWarps;

// Calls f(layer, tile, part) for each tile that the block's run has segments of.
template <int kTokens, typename F>
__device__ __forceinline__ void for_run(const Together& layers, int32_t length, F f) {
  const int32_t count = layers.each[0].segments.count;
  const int32_t num_rows = layers.each[0].num_rows;
  const auto across = static_cast<int32_t>(ceil_div(num_rows, kTokens));
  const int32_t all = layers.num_tiles * across * count;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * length;
  const int32_t last = first + length < all ? first + length : all;
  for (int32_t unit = first; unit < last;) {
    const int32_t tile = unit / count;
    const int32_t begin = unit - tile * count;
    const int32_t left = last - tile * count;
    const int32_t end = left < count ? left : count;
    const Place place = place_of(layers, tile / across);
    const Part part{tile, begin, end};
    f(place.layer, Tile{0, place.output, tile % across * kTokens, num_rows}, part);
    unit += end - begin;
  }
}

// Calls f(groups, segment) for each chain of a part: one where sums are exact, else one per
// segment.
template <typename Format, typename F>
__device__ __forceinline__ void for_chains(const Outputs& outputs, Part part, F f) {
  if constexpr (Format::kInOnePiece) {
    f(Groups{groups_of(outputs, part.begin).begin, groups_of(outputs, part.end - 1).end},
      part.begin);
  } else {
    for (int32_t segment = part.begin; segment < part.end; ++segment) {
      f(groups_of(outputs, segment), segment);
    }
  }
}

// Copies the run's chunks, by one thread: copy(layer, group, tile, stage).
template <typename Format, int kTokens, int kStages, typename F>
__device__ __forceinline__ void copy_chunks(Ring<kTokens, kStages>& ring,
                                            const Together& layers,
                                            int32_t length,
                                            F copy) {
  Cursor<kStages> at;
  for_run<kTokens>(layers, length, [&](int32_t layer, const Tile& tile, Part part) {
    for_chains<Format>(layers.each[0], part, [&](Groups left, int32_t) {
      for (; left.begin < left.end; at.advance()) {
        ptx::mbar_wait(&ring.empty[at.stage], at.parity ^ 1);
        copy(layer, left.begin, tile, at.stage);
        left.begin += chunk_groups<Format>(layers.each[0], left.begin);
      }
    });
  });
}

template <typename Format, int kTokens, int kStages>
__device__ __forceinline__ void copy_weights(Ring<kTokens, kStages>& ring,
                                             const RingWork& work,
                                             int32_t length) {
  const auto copy = [&](int32_t layer, int32_t group, const Tile& tile, int stage) {
    ptx::Mbarrier* const full = &ring.full[stage];
    ptx::mbar_arrive_expect_tx(full, kOutputs * kChunkBytes);
    const int32_t column = group * kQuantGroup;
    ptx::tma_load_2d(ring.weight[stage], &work.weight[layer], column, tile.output, full);
  };
  copy_chunks<Format>(ring, work.layers, length, copy);
}

template <typename Format, int kTokens, int kStages>
__device__ __forceinline__ void copy_x(Ring<kTokens, kStages>& ring,
                                       const RingWork& work,
                                       int32_t length) {
  const auto copy = [&](int32_t, int32_t group, const Tile& tile, int stage) {
    ptx::Mbarrier* const full = &ring.full[stage];
    ptx::mbar_arrive_expect_tx(full, kTokens * kChunkBytes);
    Format::load_x(ring.x[stage], &work.x, group, tile.token, full);
  };
  copy_chunks<Format>(ring, work.layers, length, copy);
}

// Folds the sums of a run's segments of a tile as they come. A left subtree whose parent the run
// has all of waits in one_, two_ or memory.four, by its width. f(first, sums) gets each subtree
// whose parent the run cuts, or the whole tile. Exact sums come as one.
template <typename Format, int kTokens, int kStages>
class Subtrees {
 public:
  using Sum = typename Format::Sum;
  using Sums = Sum[kTokens / 2];

  __device__ __forceinline__ explicit Subtrees(Memory<Sum, kTokens, kStages>& memory)
      : memory_(memory) {}

  // Takes `segment` of the run's part of `count` segments.
  template <typename F>
  __device__ __forceinline__ void take(int32_t segment, Part part, int32_t count, Sums& d, F f) {
    if constexpr (Format::kInOnePiece) {
      f(part.begin, d);
    } else {
      first_ = segment;
      width_ = 1;
      grows_ = true;
      bool waits = grow(part, count, d, [&](int i) -> Sum& { return one_[i]; });
      waits = waits || grow(part, count, d, [&](int i) -> Sum& { return two_[i]; });
      waits = waits ||
              grow(part, count, d, [&](int i) -> Sum& { return memory_.four[i][threadIdx.x]; });
      if (!waits) f(first_, d);
    }
  }

 private:
  // Joins d to the subtree waiting in word(i), or leaves d there; returns whether d waits.
  template <typename Word>
  __device__ __forceinline__ bool grow(Part part, int32_t count, Sums& d, Word word) {
    if (!grows_ || width_ == count) return false;
    const bool is_right = (first_ & width_) != 0;
    grows_ = is_right && first_ - width_ >= part.begin;
    if (grows_) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) d[i] = sum_of(word(i), d[i]);
      first_ -= width_;
      width_ *= 2;
      return false;
    }
    const bool waits = !is_right && first_ + 2 * width_ <= part.end;
    if (waits) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) word(i) = d[i];
    }
    return waits;
  }

  Memory<Sum, kTokens, kStages>& memory_;
  Sums one_;
  Sums two_;
  int32_t first_ = 0;
  int32_t width_ = 1;
  bool grows_ = true;
};

// Returns bits: bit i is set if a run begins at the tile's segment i, other than its first.
[[maybe_unused]] __device__ __forceinline__ uint32_t find_cuts(int32_t run,
                                                               int32_t tile,
                                                               int32_t count) {
  uint32_t cuts = 0;
  for (int32_t i = run - tile * count % run; i < count; i += run) cuts |= 1U << i;
  return cuts;
}

// Whether a run begins after the first of the segments [first, first + width).
[[maybe_unused]] __device__ __forceinline__ bool is_cut(uint32_t cuts, int first, int width) {
  return (cuts >> first & ((1U << width) - 2)) != 0;
}

// Whether the workspace has a part of the tile that begins at `segment`: a subtree that no run cuts
// while its parent is cut, or, where sums are exact, all that a run has of the tile.
template <typename Format>
__device__ __forceinline__ bool has_part(uint32_t cuts, int segment, int32_t count) {
  if (segment >= count) return false;
  if constexpr (Format::kInOnePiece) {
    return segment == 0 || (cuts >> segment & 1) != 0;
  } else {
#pragma unroll
    for (int width = 2; width < kSegments; width *= 2) {
      const int parent = segment / width * width;
      if (parent != segment && width < count && !is_cut(cuts, parent, width)) return false;
    }
    return true;
  }
}

// Tells all lanes of a warp whether theirs is the last run to arrive with a part of the tile; it
// then sees the other runs' parts. Each warp counts for itself, since it has the same 16 outputs in
// every run, at the counter of the first run that has the tile: among tiles that runs cut, one
// begins in each run.
[[maybe_unused]] __device__ __forceinline__ bool comes_last(const Outputs& outputs,
                                                            int32_t tile,
                                                            int32_t length) {
  const int32_t first = tile * outputs.segments.count / length;
  const int32_t last = (tile * outputs.segments.count + outputs.segments.count - 1) / length;
  uint32_t is_last = 0;
  __syncwarp();
  if (is_first_lane()) {
    uint32_t* const counter =
        outputs.arrivals + first * kConsumerWarps + static_cast<int32_t>(threadIdx.x) / 32;
    ptx::fence_device();
    is_last = gpu::arrive_last(counter, static_cast<uint32_t>(last - first + 1)) ? 1 : 0;
    ptx::fence_device();
  }
  is_last = __reduce_max_sync(0xFFFFFFFFU, is_last);
  __syncwarp();
  return is_last != 0;
}

// Joins the subtrees that runs have left of a tile, and finishes this thread's outputs.
template <typename Format, int kTokens>
__device__ __forceinline__ void join_parts_of(const Outputs& outputs,
                                              const Tile& tile,
                                              uint32_t cuts) {
  using Sum = typename Format::Sum;
  const int32_t count = outputs.segments.count;
  const auto* const parts = static_cast<const Sum*>(outputs.workspace);
  const int64_t stride = int64_t{outputs.num_rows} * outputs.n;
#pragma unroll 4
  for (int i = 0; i < kTokens / 2; ++i) {
    const SumPlace place = sum_place(outputs, tile, i);
    if (!place.is_inside) continue;
    const int64_t at = int64_t{place.token} * outputs.n + place.output;
    Sum s[kSegments];
#pragma unroll
    for (int part = 0; part < kSegments; ++part) {
      s[part] = has_part<Format>(cuts, part, count) ? parts[part * stride + at] : Sum{0};
    }
#pragma unroll
    for (int width = 1; width < kSegments; width *= 2) {
      if (width >= count) break;
#pragma unroll
      for (int part = 0; part < kSegments; part += 2 * width) {
        if (!Format::kInOnePiece && !is_cut(cuts, part, 2 * width)) continue;
        s[part] = sum_of(s[part], s[part + width]);
      }
    }
    finish<Format>(outputs, s[0], 0, place.output, place.token);
  }
}

template <typename Format, int kTokens, int kStages>
__device__ __forceinline__ void multiply_run(Memory<typename Format::Sum, kTokens, kStages>& memory,
                                             const Together& layers,
                                             int32_t length) {
  using Sum = typename Format::Sum;
  const int32_t count = layers.each[0].segments.count;
  Cursor<kStages> at;
  Subtrees<Format, kTokens, kStages> subtrees(memory);
  for_run<kTokens>(layers, length, [&](int32_t layer, const Tile& tile, Part part) {
    const Outputs& outputs = layers.each[layer];
    Promotion<Format, kTokens> promotion(outputs, tile);
    for_chains<Format>(layers.each[0], part, [&](const Groups& groups, int32_t segment) {
      Sum d[kTokens / 2];
      multiply_chunks(memory.ring, at, outputs, promotion, groups, d);
      subtrees.take(segment, part, count, d, [&](int32_t first, auto& sums) {
        if (part.end - part.begin == count) {
          store_tile<Format>(outputs, tile, sums);
        } else {
          store_segment(outputs, tile, first, sums);
        }
      });
    });
    if (part.end - part.begin == count || !comes_last(outputs, part.tile, length)) return;
    join_parts_of<Format, kTokens>(outputs, tile, find_cuts(length, part.tile, count));
  });
}

template <typename Format, int kTokens, int kStages>
__device__ __forceinline__ void split_block(const RingWork& work, int32_t length) {
  using Shared = Memory<typename Format::Sum, kTokens, kStages>;
  GPU_DYN_SHARED(Shared, memory);
  ptx::start_next_launch();
  if (threadIdx.x == 0) {
    init_ring(memory.ring, 2);
    ptx::fence_mbar_init();
  }
  __syncthreads();
  if (threadIdx.x == kWeightCopier) copy_weights<Format>(memory.ring, work, length);
  ptx::wait_for_launches();
  if (threadIdx.x < kConsumers) return multiply_run<Format>(memory, work.layers, length);
  if (threadIdx.x == kXCopier) copy_x<Format>(memory.ring, work, length);
}

template <typename Format, int kTokens, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    split_wgmma_kernel(const __grid_constant__ RingWork work, int32_t length) {
  if constexpr (ptx::kHasWgmma) split_block<Format, kTokens, kStages>(work, length);
}

// Returns the segments a block, of `units` in all. Whole tiles, which need no join, are taken if
// enough blocks still have work: memory does not need all of them.
int32_t run_length(std::span<const Layer> layers, int64_t units, int64_t blocks) {
  constexpr int64_t kEnoughPercent = 80;
  const Outputs& first = layers[0].outputs;
  const int64_t length = ceil_div(units, blocks);
  const int64_t whole = align_up(length, int64_t{first.segments.count});
  int64_t n = 0;
  for (const Layer& layer : layers) n += layer.outputs.n;
  const bool has_room = first.workspace != nullptr && first.num_rows <= kSplitTokens &&
                        sums_bytes(first.num_rows, n) <= kMostSumsBytes;
  const bool is_enough = ceil_div(units, whole) * 100 >= kEnoughPercent * blocks;
  return static_cast<int32_t>(has_room && !is_enough ? length : whole);
}

template <typename Format, int kTokens, int kStages>
void start(Stream stream, std::span<const Layer> layers) {
  gpu::LaunchShape shape{.threads = kThreads,
                         .shared_bytes = sizeof(Memory<typename Format::Sum, kTokens, kStages>),
                         .overlaps = overlaps(LaunchKind::kLinear, layers[0].outputs.num_rows)};
  const auto kernel = split_wgmma_kernel<Format, kTokens, kStages>;
  const Outputs& first = layers[0].outputs;
  const int64_t count = first.segments.count;
  const int64_t units = num_tiles(layers) * ceil_div(first.num_rows, kTokens) * count;
  const int64_t blocks = std::min<int64_t>(gpu::blocks_at_once(shape, kernel), kMostRuns);
  const int32_t length = run_length(layers, units, blocks);
  shape.blocks_x = ceil_div(units, length);
  gpu::launch(stream, shape, kernel, ring_work(layers, kTokens), length);
}

template <typename Format>
void start(Stream stream, std::span<const Layer> layers) {
  const int32_t num_rows = layers[0].outputs.num_rows;
  if (num_rows <= 8) return start<Format, 8, 12>(stream, layers);
  if (num_rows <= 16) return start<Format, 16, 11>(stream, layers);
  if constexpr (Format::kIsPromoted) {
    start<Format, 32, 10>(stream, layers);  // 64 would spill
  } else {
    if (num_rows <= 32) return start<Format, 32, 10>(stream, layers);
    start<Format, 64, 8>(stream, layers);
  }
}

}  // namespace

void launch_split(Stream stream, std::span<const Layer> layers) {
  with_wgmma(layers[0].matrices.format, [&]<typename Format>() { start<Format>(stream, layers); });
}

}  // namespace sluice::kernels::cuda
