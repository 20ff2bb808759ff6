// SPDX-License-Identifier: Apache-2.0
// Attention of prompts over caches of 16 bits by wgmma, on Hopper alone, by the definition in
// launch.h. A block has 128 rows of one request that share a KV head, 64 a warpgroup. One thread
// copies tiles of 64 keys into two rings, of K and of V, by blocks of the cache; the warpgroups
// multiply with q and with the weights in registers. Both matrices lie transposed in the cache and
// so in shared memory: K's rows are d, V's are keys. A tile's products with V run beside those of
// the next tile with K and beside its weighing. That wgmma gives the bits of mma.sync follows from
// one model of the tensor cores' steps, and an H200 has shown it (bench/gpu_probes, P2 and P4).
// Source of the schedule: FlashAttention-3 (arXiv:2407.08608), 3.1 and 3.2.
#include <algorithm>
#include <cstddef>

#include "engine/core/status.h"
#include "kernels/cuda/attention_pair.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/ring.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {

using gpu::Swizzle;
using gpu::TensorMap;
namespace ptx = gpu::ptx;

// These structs are not in an unnamed namespace; gemm_ring.h says why.
struct WgmmaBf16Cache {
  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    return ptx::pack_bf16(low, high);
  }

  template <int kWords>
  __device__ __forceinline__ static void multiply(float (&d)[kWords],
                                                  const uint32_t (&a)[4],
                                                  uint64_t b,
                                                  bool accumulate) {
    ptx::wgmma_rows_bf16(d, a, b, accumulate);
  }
};

struct WgmmaF16Cache {
  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    return ptx::pack_f16(low, high);
  }

  template <int kWords>
  __device__ __forceinline__ static void multiply(float (&d)[kWords],
                                                  const uint32_t (&a)[4],
                                                  uint64_t b,
                                                  bool accumulate) {
    ptx::wgmma_rows_f16(d, a, b, accumulate);
  }
};

namespace {

constexpr int kWarpgroupRows = 64;
constexpr int kConsumers = 128 * kWgmmaAttentionRows / kWarpgroupRows;
constexpr int kThreads = kConsumers + 128;  // plus the copying thread's warpgroup
// Registers of a thread: 168 at the launch; the copying warpgroup gives up what the consumers take.
constexpr int kCopyRegisters = 24;
constexpr int kConsumerRegisters = 240;
static_assert(kConsumers * kConsumerRegisters + 128 * kCopyRegisters <= 64 * 1024);
constexpr int kStages = 3;
constexpr int kStep = 16;  // d or keys of a wgmma
constexpr int kTileSteps = kAttentionTile / kStep;
constexpr int kValueColumns = 64;  // d in a row of V

struct Work {
  RoomyWork attention;
  TensorMap k;
  TensorMap v;
};

template <int kDim>
struct Ring {
  static constexpr uint32_t kTileBytes = kDim * kAttentionTile * 2;
  alignas(1024) std::byte tile[kStages][kTileBytes];
  ptx::Mbarrier full[kStages];
  ptx::Mbarrier empty[kStages];
};

template <int kDim>
struct Memory {
  Ring<kDim> keys;    // a tile is [block of the cache][d][keys of the block]
  Ring<kDim> values;  // a tile is [64 d][key][d]
  typename RowPair<kDim / 2, kConsumers>::Totals totals;
};

// Returns K's swizzle: a row of K's box is the keys of a block.
constexpr Swizzle key_swizzle(int32_t block_size) {
  return block_size == 64 ? Swizzle::k128 : block_size == 32 ? Swizzle::k64 : Swizzle::k32;
}

template <int kDim>
__device__ __forceinline__ void initialize(Ring<kDim>& ring) {
  for (int stage = 0; stage < kStages; ++stage) {
    ptx::mbar_init(&ring.full[stage], 1);
    ptx::mbar_init(&ring.empty[stage], kConsumers / 32);
  }
}

// Waits until the next stage of a ring is free, and takes it for copies.
template <int kDim>
__device__ __forceinline__ void take_stage(Ring<kDim>& ring, const Cursor<kStages>& at) {
  ptx::mbar_wait(&ring.empty[at.stage], at.parity ^ 1);
  ptx::mbar_arrive_expect_tx(&ring.full[at.stage], Ring<kDim>::kTileBytes);
}

// Copies K and V of the block's tiles, by one thread. The table may hold anything for a block of
// the cache that no row sees a key of: its index is set past the last one, which reads zeros.
template <int kDim>
__device__ __forceinline__ void produce(Memory<kDim>& memory,
                                        const Work& work,
                                        const RowBlock& block,
                                        KeyRange tiles) {
  const AttentionArgs& args = work.attention.args;
  const int32_t size = args.kv.block_size;
  const int32_t* const table = args.block_table + int64_t{block.request} * args.block_table_stride;
  const KeyRange keys = visible_to_any(work.attention, block);
  constexpr int kMostBlocks = kAttentionTile / kWgmmaBlockSize;
  constexpr int kValueRowBytes = kValueColumns * 2;
  Cursor<kStages> at;
  for (int32_t tile = tiles.begin; tile < tiles.end; ++tile, at.advance()) {
    int32_t blocks[kMostBlocks];
#pragma unroll
    for (int i = 0; i < kMostBlocks; ++i) {
      const int32_t key = tile * kAttentionTile + i * size;
      const bool some = key < keys.end && key + size > keys.begin && i * size < kAttentionTile;
      blocks[i] = some ? table[key >> work.attention.block_shift] : args.kv.num_blocks;
    }
    take_stage(memory.keys, at);
#pragma unroll
    for (int i = 0; i < kMostBlocks; ++i) {
      if (i * size >= kAttentionTile) break;
      ptx::tma_load_4d(memory.keys.tile[at.stage] + i * size * kDim * 2,
                       &work.k,
                       0,
                       0,
                       block.kv_head,
                       blocks[i],
                       &memory.keys.full[at.stage]);
    }
    take_stage(memory.values, at);
    for (int first_d = 0; first_d < kDim; first_d += kValueColumns) {
#pragma unroll
      for (int i = 0; i < kMostBlocks; ++i) {
        if (i * size >= kAttentionTile) break;
        ptx::tma_load_4d(memory.values.tile[at.stage] +
                             (first_d / kValueColumns * kAttentionTile + i * size) * kValueRowBytes,
                         &work.v,
                         first_d,
                         0,
                         block.kv_head,
                         blocks[i],
                         &memory.values.full[at.stage]);
      }
    }
  }
}

// The 64 rows of a warpgroup, 16 a warp.
template <typename Cache, int kDim>
class WarpgroupRows {
  using Pair = RowPair<kDim / 2, kConsumers, RoomyWork>;
  static constexpr uint32_t kValueRowBytes = kValueColumns * 2;

 public:
  __device__ __forceinline__ WarpgroupRows(Memory<kDim>& memory,
                                           const RoomyWork& work,
                                           const RowBlock& block)
      : memory_(memory),
        keys_(visible_to_any(work, block)),
        block_size_(work.args.kv.block_size),
        pair_(work, block, static_cast<int32_t>(threadIdx.x / 32) * 16, 0, true, memory.totals) {
    load_queries(work, block);
  }

  // Takes the warpgroup's tiles. A tile's weighing does not wait for the products with V of the
  // tile before; if that tile ends a partition, the partition is joined after them. Tiles that the
  // rows do not see are taken like others: they change nothing (launch.h).
  __device__ __forceinline__ void take(KeyRange tiles) {
    int32_t tile = uniform(tiles.begin);
    const int32_t end = uniform(tiles.end);
    float c[2];
    pair_.start_partition();
    multiply_keys();
    wait_keys<0>();
    weigh(tile * kAttentionTile, c);
    for (; tile + 1 < end; ++tile) {
      const bool ends = (tile + 1) % kPartitionTiles == 0;
      rescale(c);
      multiply_keys();
      multiply_values(tile * kAttentionTile);
      wait_keys<1>();
      RowState ended[2];
      pair_.take_state(ends, ended);
      weigh((tile + 1) * kAttentionTile, c);
      wait_values();
      if (ends) pair_.end_partition(tile / kPartitionTiles, ended);
    }
    rescale(c);
    multiply_values(tile * kAttentionTile);
    wait_values();
    RowState ended[2];
    pair_.take_state(true, ended);
    pair_.end_partition(tile / kPartitionTiles, ended);
  }

  // Does a warpgroup's part in the block's synchronization where it has no rows.
  __device__ __forceinline__ void pass(KeyRange tiles) {
    for (int32_t tile = tiles.begin; tile < tiles.end; ++tile) {
      ptx::mbar_wait(&memory_.keys.full[keys_at_.stage], keys_at_.parity);
      release(memory_.keys, keys_at_);
      ptx::mbar_wait(&memory_.values.full[values_at_.stage], values_at_.parity);
      clear_unseen(tile * kAttentionTile);
      release(memory_.values, values_at_);
    }
  }

  __device__ __forceinline__ void finish() { pair_.finish(); }

 private:
  // Returns x, which the compiler then knows to be equal in all lanes: it waits for each wgmma
  // unless it knows that control flow is a warp's.
  __device__ __forceinline__ static int32_t uniform(int32_t x) {
    return static_cast<int32_t>(__reduce_max_sync(kAllLanes, static_cast<uint32_t>(x)));
  }

  // Loads q as A; missing rows and d are zeros.
  __device__ __forceinline__ void load_queries(const AttentionWork& work, const RowBlock& block) {
    const int32_t head_dim = work.args.kv.head_dim;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t r = pair_.row_of(h);
      const bool is_row = r < block.num_rows;
      const float* const q =
          work.args.q + (is_row ? head_at(work, block, r, work.args.q_stride) : 0);
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        const int32_t d = 8 * i + Pair::lane() % 4 * 2;
        const float low = is_row && d < head_dim ? q[d] : 0;
        const float high = is_row && d + 1 < head_dim ? q[d + 1] : 0;
        q_[i / 2][i % 2 * 2 + h] = Cache::pack(low, high);
      }
    }
    ptx::fence_registers(q_);
  }

  __device__ __forceinline__ void weigh(int32_t begin, float (&c)[2]) {
    float tops[2];
    float parts[2][kTileSteps];
    pair_.finish_scores(begin, 0, scores_);
    Pair::find_tops(scores_, tops);
    pair_.raise(tops, c);
    pair_.weigh(scores_, parts);
    for (int h = 0; h < 2; ++h) pair_.add_sum(h, parts[h], c);
  }

  // Issues the products of the next tile with K.
  __device__ __forceinline__ void multiply_keys() {
    ptx::mbar_wait(&memory_.keys.full[keys_at_.stage], keys_at_.parity);
    const uint32_t k = ptx::shared_address(memory_.keys.tile[keys_at_.stage]);
    const auto row_bytes = static_cast<uint32_t>(block_size_) * 2;
    const Swizzle swizzle = key_swizzle(block_size_);
    ptx::fence_registers(scores_);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / kStep; ++step) {
      const auto offset = static_cast<uint32_t>(step * kStep) * row_bytes;
      const uint64_t b =
          ptx::transposed_descriptor(k + offset, swizzle, 8 * row_bytes, kDim * row_bytes);
      Cache::multiply(scores_, q_[step], b, step > 0);
    }
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void multiply_values(int32_t begin) {
    ptx::mbar_wait(&memory_.values.full[values_at_.stage], values_at_.parity);
    clear_unseen(begin);
    constexpr uint32_t kNext64 = kAttentionTile * kValueRowBytes;
    const uint32_t v = ptx::shared_address(memory_.values.tile[values_at_.stage]);
    ptx::fence_registers(pair_.outputs());
    ptx::fence_registers(weights_);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      const uint32_t offset = static_cast<uint32_t>(step * kStep) * kValueRowBytes;
      const uint64_t b =
          ptx::transposed_descriptor(v + offset, Swizzle::k128, 8 * kValueRowBytes, kNext64);
      Cache::multiply(pair_.outputs(), weights_[step], b, true);
    }
    ptx::wgmma_commit();
  }

  // Waits for the products with K. kPending: products with V that may still run.
  template <int kPending>
  __device__ __forceinline__ void wait_keys() {
    ptx::wgmma_wait<kPending>();
    ptx::fence_registers(scores_);
    release(memory_.keys, keys_at_);
  }

  __device__ __forceinline__ void wait_values() {
    ptx::wgmma_wait<0>();
    ptx::fence_registers(pair_.outputs());
    release(memory_.values, values_at_);
  }

  // Rescales outputs, and packs weights for the products with V.
  __device__ __forceinline__ void rescale(const float (&c)[2]) {
    pair_.rescale(c);
    Pair::template pack<Cache>(scores_, weights_);
  }

  // Zeros V for keys that no row sees: whole blocks of the cache came, and a weight of 0 does not
  // hide a NaN. All consumers of the block call it; only its first and last tile need it.
  __device__ __forceinline__ void clear_unseen(int32_t begin) {
    if (keys_.begin <= begin && keys_.end >= begin + kAttentionTile) return;
    auto* const pieces = reinterpret_cast<float4*>(memory_.values.tile[values_at_.stage]);
    constexpr int kPieceBytes = sizeof(*pieces);
    constexpr int kRowPieces = kValueRowBytes / kPieceBytes;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kDim * kAttentionTile * 2 / kPieceBytes;
         i += kConsumers) {
      const int32_t key = begin + i / kRowPieces % kAttentionTile;
      if (key < keys_.begin || key >= keys_.end) pieces[i] = float4{0, 0, 0, 0};
    }
    ptx::fence_proxy_async();
    ptx::bar_sync(1, kConsumers);
  }

  // Releases a stage: each warp arrives once all of its lanes are finished with it.
  __device__ __forceinline__ static void release(Ring<kDim>& ring, Cursor<kStages>& at) {
    __syncwarp();
    if (Pair::lane() == 0) ptx::mbar_arrive(&ring.empty[at.stage]);
    at.advance();
  }

  Memory<kDim>& memory_;
  KeyRange keys_;  // seen by some row of the block
  int32_t block_size_;
  Cursor<kStages> keys_at_;  // the tile whose products with K are next or in flight
  Cursor<kStages> values_at_;
  Pair pair_;
  uint32_t q_[kDim / kStep][4];
  float scores_[kAttentionTile / 2];
  uint32_t weights_[kTileSteps][4];
};

template <typename Cache, int kDim>
__device__ __forceinline__ void attention_block(const Work& work) {
  GPU_DYN_SHARED(Memory<kDim>, memory);
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const RowBlock block = find_rows(work.attention);
  if (block.num_rows == 0) return;
  const KeyRange tiles = tiles_of(work.attention, block, static_cast<int32_t>(blockIdx.y));
  if (tiles.begin >= tiles.end) return;
  if (threadIdx.x == 0) {
    initialize(memory.keys);
    initialize(memory.values);
    ptx::fence_mbar_init();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    ptx::give_registers<kCopyRegisters>();
    if (threadIdx.x == kConsumers) produce(memory, work, block, tiles);
    return;
  }
  ptx::take_registers<kConsumerRegisters>();
  WarpgroupRows<Cache, kDim> rows(memory, work.attention, block);
  if (static_cast<int32_t>(threadIdx.x) / 128 * kWarpgroupRows >= block.num_rows) {
    rows.pass(tiles);
    return;
  }
  rows.take(tiles);
  if (work.attention.partials == nullptr) rows.finish();
}

template <typename Cache, int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma_kernel(const __grid_constant__ Work work) {
  if constexpr (ptx::kHasWgmma) attention_block<Cache, kDim>(work);
}

// Returns a map of one head in a block of the cache, `rows` of it with `columns` each.
TensorMap block_map(const std::byte* data,
                    const KvLayerView& kv,
                    int64_t columns,
                    int64_t rows,
                    int box_columns,
                    int box_rows,
                    Swizzle swizzle) {
  const int64_t head_bytes = kv_head_bytes(kv.dtype, kv.head_dim, kv.block_size);
  return gpu::make_tensor_map(
      {.data = data,
       .element_bytes = 2,
       .rank = 4,
       .sizes = {columns, rows, kv.num_kv_heads, kv.num_blocks},
       .strides = {0, columns * 2, head_bytes, kv.num_kv_heads * head_bytes},
       .box = {box_columns, box_rows, 1, 1},
       .swizzle = swizzle});
}

template <typename Cache, int kDim>
void start(Stream stream, const RoomyWork& attention, const AttentionGrid& grid) {
  const KvLayerView& kv = attention.args.kv;
  const int64_t width = cached_head_dim(kv.head_dim);
  const int32_t size = kv.block_size;
  const Work work{.attention = attention,
                  .k = block_map(kv.k, kv, size, width, size, kDim, key_swizzle(size)),
                  .v = block_map(kv.v, kv, width, size, kValueColumns, size, Swizzle::k128)};
  gpu::launch(stream,
              {.blocks_x = grid.blocks,
               .blocks_y = grid.partitions,
               .threads = kThreads,
               .shared_bytes = sizeof(Memory<kDim>),
               .overlaps = overlaps(LaunchKind::kAttention, attention.args.num_tokens)},
              attention_wgmma_kernel<Cache, kDim>,
              work);
}

template <typename Cache>
void start(Stream stream, const RoomyWork& work, const AttentionGrid& grid) {
  return work.args.kv.head_dim <= 64 ? start<Cache, 64>(stream, work, grid)
                                     : start<Cache, 128>(stream, work, grid);
}

}  // namespace

bool wgmma_attends(const KvLayerView& kv) {
  const bool half = kv.dtype == DType::kBF16 || kv.dtype == DType::kF16;
  return half && kv.head_dim <= kManyRowsWidth && kv.value_width() == kv.head_dim &&
         kv.block_size >= kWgmmaBlockSize;
}

void launch_attention_wgmma(Stream stream, const RoomyWork& work, const AttentionGrid& grid) {
  CHECK(wgmma_attends(work.args.kv) && work.rows_per_block == kWgmmaAttentionRows);
  if (work.args.kv.dtype == DType::kF16) return start<WgmmaF16Cache>(stream, work, grid);
  start<WgmmaBf16Cache>(stream, work, grid);
}

}  // namespace sluice::kernels::cuda
