// SPDX-License-Identifier: Apache-2.0
// Attention of few rows a request, decodes above all, over caches of 16 and 8 bits on Hopper, by
// the definition in launch.h. A block walks its share of the list (attention_list_work.h) while
// one of its warps copies (attention_list_copies.h). Eight warps take a partition at a time: each
// has scores and weights of one of its 8 tiles (attention_list_scores.h), then an eighth of d of
// all of them (attention_list_outputs.h), so that the warps meet twice a partition.
#include <algorithm>
#include <cstddef>

#include "engine/core/status.h"
#include "kernels/cuda/attention_list_copies.h"
#include "kernels/cuda/attention_list_memory.h"
#include "kernels/cuda/attention_list_outputs.h"
#include "kernels/cuda/attention_list_scores.h"
#include "kernels/cuda/attention_list_work.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/ring.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::kernels::cuda {

using gpu::Swizzle;
using gpu::TensorMap;
namespace ptx = gpu::ptx;

namespace {

constexpr int kListThreads = kListConsumers + 128;  // plus the copying warp's warpgroup
// Registers of a thread: 168 at the launch; the copying warpgroup gives up what the consumers take.
constexpr int kCopyRegisters = 72;
constexpr int kConsumerRegisters = 216;
static_assert(kListConsumers * kConsumerRegisters + 128 * kCopyRegisters <= 64 * 1024);

// A consumer warp: scores of a tile of its own, then its part of d of every tile.
template <typename Cache, int kDim, int kHalves>
class ListRows {
  using Memory = ListMemory<Cache, kDim, kHalves>;
  static constexpr bool kCodes = Memory::kCodes;
  static constexpr int kKeyStages = Memory::kKeyStages;

 public:
  __device__ __forceinline__ ListRows(Memory& memory, const ListWork& list)
      : memory_(memory),
        work_(list.attention),
        width_(static_cast<int32_t>(cached_head_dim(list.attention.args.kv.head_dim))),
        scores_(memory, list.attention),
        outputs_(memory, list) {}

  __device__ __forceinline__ void take(const WorkList& list) {
    Visits visits(list, static_cast<int32_t>(blockIdx.x));
    Visit visit;
    while (visits.next(work_, visit)) {
      block_ = list_block_of<kHalves>(work_, visit.block);
      scores_.begin(block_);
      outputs_.begin();
      for (int32_t partition = visit.begin; partition < visit.end; ++partition) {
        const KeyRange tiles = tiles_within(block_.keys, partition);
        if (tiles.begin >= tiles.end) continue;
        attend(tiles);
        if (visit.starts) {
          outputs_.join(block_, partition);
        } else {
          outputs_.store_partition(visit.block, partition - visit.begin);
        }
      }
      if (!visit.starts) continue;
      if (visit.ends) {
        outputs_.finish(visit.block);
      } else {
        outputs_.store_joined(visit.block);
      }
    }
  }

 private:
  // Attends the tiles of one partition: m, l and o of the lane's rows.
  __device__ __forceinline__ void attend(KeyRange tiles) {
    const int32_t count = tiles.end - tiles.begin;
    const bool mine = list_warp() < count;
    typename Memory::ByTile& tops = memory_.tops[turn_];
    turn_ ^= 1;
    const uint32_t number = taken_ + static_cast<uint32_t>(list_warp());
    const auto stage = static_cast<int>(number % kKeyStages);
    if constexpr (!Memory::kOwnStages) follow_keys(0, std::min(list_warp(), count));
    if (mine) {
      ptx::mbar_wait(&memory_.keys_full[stage], static_cast<int>(number / kKeyStages % 2));
      scores_.multiply(stage, width_);
      if constexpr (!kCodes) release(&memory_.keys_empty[stage]);
      scores_.finish(block_, stage, (tiles.begin + list_warp()) * kAttentionTile, tops);
    }
    if constexpr (!Memory::kOwnStages) follow_keys(list_warp() + 1, count);
    ptx::bar_sync(1, kListConsumers);
    if (mine) {
      scores_.weigh(tops);
      if constexpr (kCodes) {
        scores_.scale_weights(stage);
        release(&memory_.keys_empty[stage]);
      }
      scores_.share();
    }
    ptx::bar_sync(1, kListConsumers);
    outputs_.begin_partition(tops, count);
    for (int32_t i = 0; i < count; ++i, values_at_.advance()) {
      const int at = values_at_.stage;
      ptx::mbar_wait(&memory_.values_full[at], values_at_.parity);
      outputs_.multiply(block_, at, i, (tiles.begin + i) * kAttentionTile);
      release(&memory_.values_empty[at]);
    }
    taken_ += static_cast<uint32_t>(count);
  }

  // Waits for K of the partition's tiles [first, last), which are other warps' tiles.
  __device__ __forceinline__ void follow_keys(int32_t first, int32_t last) {
    for (int32_t i = first; i < last; ++i) {
      const uint32_t number = taken_ + static_cast<uint32_t>(i);
      const uint32_t stage = number % kKeyStages;
      ptx::mbar_wait(&memory_.keys_full[stage], static_cast<int>(number / kKeyStages % 2));
      release(&memory_.keys_empty[stage]);
    }
  }

  __device__ __forceinline__ static void release(ptx::Mbarrier* empty) {
    __syncwarp();
    if (list_lane() == 0) ptx::mbar_arrive(empty);
  }

  Memory& memory_;
  const AttentionWork& work_;
  int32_t width_;       // cached_head_dim()
  uint32_t taken_ = 0;  // tiles of K so far
  Cursor<Memory::kValueStages> values_at_;
  int turn_ = 0;  // index of this partition's memory_.tops
  ListBlock<kHalves> block_;
  ListScores<Cache, kDim, kHalves> scores_;
  ListOutputs<Cache, kDim, kHalves> outputs_;
};

template <typename Cache, int kDim, int kHalves>
__device__ __forceinline__ void list_block(const ListMaps& maps) {
  using Memory = ListMemory<Cache, kDim, kHalves>;
  GPU_DYN_SHARED(Memory, memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Memory::kKeyStages; ++stage) {
      ptx::mbar_init(&memory.keys_full[stage], 1);
      ptx::mbar_init(&memory.keys_empty[stage], Memory::kOwnStages ? 1 : kListWarps);
    }
    for (int stage = 0; stage < Memory::kValueStages; ++stage) {
      ptx::mbar_init(&memory.values_full[stage], 1);
      ptx::mbar_init(&memory.values_empty[stage], kListWarps);
    }
    ptx::fence_mbar_init();
  }
  // Blocks of the merge start where blocks of this launch have ended; all of them wait.
  ptx::wait_for_launches();
  ptx::start_next_launch();
  const WorkList list(maps.list, memory.starts);
  if (threadIdx.x >= kListConsumers) {
    ptx::give_registers<kCopyRegisters>();
    if (threadIdx.x >= kListConsumers + 32) return;
    ListCopies<Cache, kDim, kHalves> copies(memory, maps);
    copies.take(list);
    return;
  }
  ptx::take_registers<kConsumerRegisters>();
  ListRows<Cache, kDim, kHalves> rows(memory, maps.list);
  rows.take(list);
}

template <typename Cache, int kDim, int kHalves>
__global__ void __launch_bounds__(kListThreads, 1)
    attention_list_kernel(const __grid_constant__ ListMaps maps) {
  if constexpr (ptx::kHasWgmma) list_block<Cache, kDim, kHalves>(maps);
}

// A row block that share number `index` and the next share cut, and which began in `index`'s.
struct CutBlock {
  RowBlock rows;
  int32_t partitions;  // in the share that began it; 0: no such row block
  int32_t first_item;
  ItemRange head;  // the share that began it
};

__device__ __forceinline__ CutBlock cut_block(const AttentionWork& work,
                                              const WorkList& list,
                                              int32_t index) {
  CutBlock cut{.rows = {}, .partitions = 0, .first_item = 0, .head = {}};
  if (index + 1 >= list.num_shares()) return cut;
  cut.head = list.share(index);
  const int32_t request = list.request_of(cut.head.end);
  const RequestWork of = request_work(work, request);
  const int32_t item = cut.head.end - list.start_of(request);
  const int32_t each = list.items_of(of);
  const int32_t unit = item / each;
  const int32_t partitions = item - unit * each;
  cut.first_item = cut.head.end - partitions;
  if (cut.first_item < cut.head.begin) return cut;
  cut.partitions = partitions;
  cut.rows = list.rows_of(of, request, unit);
  return cut;
}

// Merges output d of row blockIdx.y from its partitions' partials, numbered from the row block's
// first. The partial that the first share joined counts as its last partition.
__device__ __forceinline__ void merge_output(const ListWork& list_work,
                                             const WorkList& list,
                                             const CutBlock& cut,
                                             KeyRange partitions,
                                             int32_t d) {
  constexpr int kAhead = 8;  // partials in flight at once
  const AttentionWork& work = list_work.attention;
  const auto r = static_cast<int32_t>(blockIdx.y);
  const int32_t width = work.args.kv.head_dim;
  RowState state{.m = kLowest, .l = 0};
  float output = 0;
  bool begun = false;
  auto share = static_cast<int32_t>(blockIdx.x);
  ItemRange items = cut.head;
  for (int32_t next = partitions.begin; next < partitions.end; next += kAhead) {
    float o[kAhead];
    float m[kAhead];
    float l[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t partition = next + i;
      if (partition >= partitions.end) break;
      const int32_t item = cut.first_item + partition;
      while (item >= items.end) items = list.share(++share);
      const int32_t slot = partition < cut.partitions ? list_work.slots - 1 : item - items.begin;
      const float* const partial = list_partial(list_work, share, slot, r);
      o[i] = partial[d];
      m[i] = partial[width];
      l[i] = partial[width + 1];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (next + i >= partitions.end) break;
      const MergeFactors factors = merge_factors(state.m, m[i]);
      output = begun ? merged(factors, output, o[i]) : o[i];
      state = begun ? RowState{factors.m, merged(factors, state.l, l[i])} : RowState{m[i], l[i]};
      begun = true;
    }
  }
  float* const out = work.args.out + head_at(work, cut.rows, r, work.args.out_stride);
  out[d] = finished(finish_of(sink_of(work, cut.rows, r), state), output);
}

// Merges along x at each border between shares, along y each row of a row block. Every thread folds
// m and l itself, and o for its d.
__global__ void __launch_bounds__(kAttentionThreads, 1)
    merge_list_kernel(const __grid_constant__ ListWork list_work) {
  GPU_SHARED(int32_t, starts, kListWords);
  ptx::wait_for_launches();
  ptx::start_next_launch();
  const AttentionWork& work = list_work.attention;
  const WorkList list(list_work, starts);
  const CutBlock cut = cut_block(work, list, static_cast<int32_t>(blockIdx.x));
  const auto r = static_cast<int32_t>(blockIdx.y);
  if (cut.partitions == 0 || r >= cut.rows.num_rows) return;
  const KeyRange keys = visible_keys(work, cut.rows, r);
  const int32_t base = first_partition_of(work, cut.rows);
  const int32_t first = keys.begin / kAttentionPartition - base;
  const int32_t begin = first < cut.partitions ? cut.partitions - 1 : first;
  const int32_t end = (keys.end - 1) / kAttentionPartition - base + 1;
  const KeyRange partitions{begin, end > begin ? end : begin + 1};
  for (auto d = static_cast<int32_t>(threadIdx.x); d < work.args.kv.head_dim;
       d += kAttentionThreads) {
    merge_output(list_work, list, cut, partitions, d);
  }
}

struct MapShape {
  const std::byte* data;
  int element_bytes;
  int64_t columns;
  int64_t rows;
  int64_t row_bytes;
  int box_columns;
  int box_rows;
  Swizzle swizzle;
};

// Returns a map whose boxes are of one head in one block of the cache.
TensorMap map_of(const KvLayerView& kv, const MapShape& shape) {
  const int64_t head_bytes = kv_head_bytes(kv.dtype, kv.head_dim, kv.block_size);
  return gpu::make_tensor_map(
      {.data = shape.data,
       .element_bytes = shape.element_bytes,
       .rank = 4,
       .sizes = {shape.columns, shape.rows, kv.num_kv_heads, kv.num_blocks},
       .strides = {0, shape.row_bytes, head_bytes, kv.num_kv_heads * head_bytes},
       .box = {shape.box_columns, shape.box_rows, 1, 1},
       .swizzle = shape.swizzle});
}

template <typename Cache, int kDim, int kHalves>
void start(Stream stream, const ListWork& list) {
  using Memory = ListMemory<Cache, kDim, kHalves>;
  const KvLayerView& kv = list.attention.args.kv;
  const int64_t width = cached_head_dim(kv.head_dim);
  const int32_t size = kv.block_size;
  constexpr int kLine = kLineBytes / Cache::kBytes;
  constexpr int kColumns = std::min(kDim, kLine);
  ListMaps maps{.list = list,
                .k = map_of(kv,
                            {.data = kv.k,
                             .element_bytes = Cache::kBytes,
                             .columns = kLine,
                             .rows = width * size / kLine,
                             .row_bytes = kLineBytes,
                             .box_columns = kLine,
                             .box_rows = kDim * size / kLine,
                             .swizzle = Swizzle::k128}),
                .v = map_of(kv,
                            {.data = kv.v,
                             .element_bytes = Cache::kBytes,
                             .columns = width,
                             .rows = size,
                             .row_bytes = width * Cache::kBytes,
                             .box_columns = kColumns,
                             .box_rows = size,
                             .swizzle = kColumns * Cache::kBytes == kLineBytes ? Swizzle::k128
                                                                               : Swizzle::k64}),
                .k_scales = {},
                .v_scales = {}};
  if constexpr (Memory::kCodes) {
    const auto scales = [&](const std::byte* data) {
      const int row_bytes = size * static_cast<int>(sizeof(float));
      return map_of(kv,
                    {.data = data + width * size,
                     .element_bytes = 1,
                     .columns = row_bytes,
                     .rows = 1,
                     .row_bytes = row_bytes,
                     .box_columns = row_bytes,
                     .box_rows = 1,
                     .swizzle = Swizzle::kNone});
    };
    maps.k_scales = scales(kv.k);
    maps.v_scales = scales(kv.v);
  }
  gpu::launch(stream,
              {.blocks_x = list.blocks,
               .threads = kListThreads,
               .shared_bytes = sizeof(Memory),
               .overlaps = overlaps(LaunchKind::kAttention, list.attention.args.num_tokens)},
              attention_list_kernel<Cache, kDim, kHalves>,
              maps);
}

template <typename Cache, int kDim>
void start(Stream stream, const ListWork& list) {
  return list.attention.rows_per_block <= 8 ? start<Cache, kDim, 1>(stream, list)
                                            : start<Cache, kDim, 2>(stream, list);
}

template <typename Cache>
void start(Stream stream, const ListWork& list) {
  const int32_t head_dim = list.attention.args.kv.head_dim;
  if (head_dim <= 64) return start<Cache, 64>(stream, list);
  if (head_dim <= 128) return start<Cache, 128>(stream, list);
  start<Cache, 256>(stream, list);
}

void start(Stream stream, const ListWork& list) {
  switch (list.attention.args.kv.dtype) {
    case DType::kF16:
      return start<F16Cache>(stream, list);
    case DType::kBF16:
      return start<Bf16Cache>(stream, list);
    case DType::kI8:
      return start<Int8Cache>(stream, list);
    case DType::kF8E4M3:
      return start<Fp8Cache>(stream, list);
    default:
      SLUICE_UNREACHABLE("no KV cache of the tensor cores");
  }
}

}  // namespace

bool list_attends(const KvLayerView& kv) {
  return kv.dtype != DType::kF32 && kv.head_dim <= kWideHead && kv.value_width() == kv.head_dim &&
         kv.block_size >= kWgmmaBlockSize;
}

void launch_attention_list(Stream stream, const ListWork& work) {
  CHECK(list_attends(work.attention.args.kv));
  CHECK_LE(work.attention.num_reqs, kMostListRequests);
  start(stream, work);
  if (work.attention.partials == nullptr) return;
  gpu::launch(stream,
              {.blocks_x = work.blocks - 1,
               .blocks_y = work.attention.rows_per_block,
               .threads = kAttentionThreads,
               .overlaps = overlaps(LaunchKind::kAttention, work.attention.args.num_tokens)},
              merge_list_kernel,
              work);
}

}  // namespace sluice::kernels::cuda
